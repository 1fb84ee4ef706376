package consumer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/retry"
)

func TestBadConfigNamesEverything(t *testing.T) {
	t.Parallel()
	_, err := consumer.New(consumer.Config{
		Service: "No Good", AMQPURL: "amqp://u:secret@h:port/", Concurrency: -1, Lease: time.Millisecond, StartTimeout: -1, ScanInterval: -1, MaxPayload: -1, Name: strings.Repeat("n", 300),
	})
	var field *retry.FieldError
	if !errors.As(err, &field) || !errors.Is(err, retry.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	for _, text := range []string{"service", "store", "amqp url", "concurrency", "lease", "start timeout", "scan interval", "max payload", "consumer name", "handlers"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not named in %v", text, err)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("shows the password: %v", err)
	}
}

func TestBadHandlers(t *testing.T) {
	t.Parallel()
	good := consumer.Config{Service: "orders", AMQPURL: "amqp://h", Store: storetest.OpenConfig(t, persistence.Config{Service: "orders", Schema: "unused"})}
	ok := consumer.Handle(fast("order", ""), succeed)
	if _, err := consumer.New(good, ok); err != nil {
		t.Fatal(err)
	}
	for name, handlers := range map[string][]consumer.Handler{
		"Query":           {consumer.Handle(fast("order", retry.UnknownAsk), succeed)},
		"registered once": {ok, ok},
		"at least one":    nil,
		"max_attempts":    {consumer.Handle(retry.Scene{Name: "order", Policy: retry.Policy{Kind: retry.Fixed, Base: time.Second, MaxAttempts: -1}}, succeed)},
		"Scene Name":      {consumer.Handle(retry.Scene{Name: "Scene Name"}, succeed)},
		"a function":      {consumer.Handle[order](fast("order", ""), nil)},
	} {
		if _, err := consumer.New(good, handlers...); err == nil || !errors.Is(err, retry.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want it to name %q", err, name)
		}
	}
	other := good
	other.Service = "invoices"
	if _, err := consumer.New(other, ok); err == nil || !strings.Contains(err.Error(), "store") {
		t.Errorf("the store of another service: %v", err)
	}
}
