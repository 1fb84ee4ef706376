package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/topology"
)

// depth waits until a queue has n messages that nobody holds: what a look held is back a moment after its end.
func depth(t *testing.T, queue string, n int) {
	t.Helper()
	conn, err := amqp.Dial(os.Getenv(varAMQP))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, fmt.Sprintf("%d messages in %s", n, queue), func() bool {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q.Messages == n
	})
}

func send(t *testing.T, exchange, key string, p amqp.Publishing) {
	t.Helper()
	conn, err := amqp.Dial(os.Getenv(varAMQP))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), exchange, key, true, false, p)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := confirm.WaitContext(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestDLX(t *testing.T) {
	servers(t)
	run(t, "dlx", "list").want(t, exitFailed, "does not exist", "topology declare")
	run(t, "topology", "declare").want(t, exitOK)
	n := topology.NamesOf(os.Getenv(varService))
	run(t, "dlx", "list").want(t, exitOK, "ID")
	run(t, "dlx", "replay", "--all").want(t, exitOK, "0 replayed")

	send(t, n.Dead(), "", amqp.Publishing{MessageId: "m1", Body: []byte("a\x00"), Headers: amqp.Table{"spillway-reason": "no\nJSON", "mine": "x"}})
	send(t, n.Dead(), "", amqp.Publishing{Body: []byte("stray")})
	send(t, n.Due(), "nobody", amqp.Publishing{Body: []byte("text")})
	depth(t, n.Parked(), 2)
	depth(t, n.Unrouted(), 1)
	list := decode[[]listed](t, run(t, "dlx", "list", "-o", "json").want(t, exitOK))
	if len(list) != 3 || list[0].Bytes != 2 || list[0].Preview != `"a\x00"` || list[1].Target != nil || list[2].Preview != "text" {
		t.Fatalf("got %+v", list)
	}
	depth(t, n.Parked(), 2)
	depth(t, n.Unrouted(), 1)
	run(t, "dlx", "list").want(t, exitOK, list[0].ID, "no JSON", "unrouted")
	depth(t, n.Parked(), 2)
	run(t, "dlx", "show", list[0].ID, "feed").want(t, exitFailed, "m1", "exchange "+n.Submit(), "mine: x", `2 bytes: "a\x00"`, "not found", "[feed]")
	depth(t, n.Parked(), 2)

	for _, tt := range []struct{ args, want string }{
		{"dlx list --queue park", `did you mean "parked"?`},
		{"dlx list --older-than -1s", "--older-than"},
		{"dlx list --limit -1", "--limit"},
		{"dlx replay", "say which messages"},
		{"dlx replay --all --scene a", "say which messages"},
		{"dlx replay --all --rate -1", "--rate"},
		{"dlx replay --all --to-key k", "--to-exchange"},
		{"dlx replay --all --to-queue q --to-key k", "--to-queue"},
		{"dlx replay --all -o xml", "--output"},
		{"dlx drop --all", "--yes"},
		{"dlx drop --yes", "say which messages"},
		{"dlx show", "arg"},
	} {
		run(t, strings.Fields(tt.args)...).want(t, exitUsage, tt.want)
	}
	depth(t, n.Parked(), 2)
	depth(t, n.Unrouted(), 1)

	// The second does not say where it belongs: it stays.
	run(t, "dlx", "replay", "--queue", "parked", "--all").want(t, exitFailed, list[0].ID+": to exchange "+n.Submit(), "1 replayed", list[1].ID, "give a target")
	depth(t, n.Parked(), 1)
	run(t, "dlx", "replay", list[1].ID, "--to-queue", n.Submit()).want(t, exitOK, "1 replayed")
	depth(t, n.Parked(), 0)
	depth(t, n.Submit(), 2)
	run(t, "dlx", "drop", list[2].ID, "--yes").want(t, exitOK, list[2].ID+": dropped", "1 dropped")
	depth(t, n.Unrouted(), 0)
}
