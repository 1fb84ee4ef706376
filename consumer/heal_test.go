package consumer_test

import (
	"testing"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/publisher"
	"github.com/spillway-mq/spillway/retry"
	"github.com/spillway-mq/spillway/topology"
)

// A killed broker comes back with queues that it lists and has lost: without Heal every subscription would end the
// connection, for ever.
func TestBrokerLosesQueuesInACrash(t *testing.T) {
	broker := testenv.NewServer(t, testenv.ServerConfig{})
	broker.Use(t)
	w := newWorld(t, topology.Quorum)
	cfg := w.config()
	cfg.Kind, cfg.Declare = topology.Quorum, true
	w.start(cfg, consumer.Handle(fast("order", ""), succeed))
	w.await(w.enqueue(publisher.Task{Scene: "order", Args: order{1}})[0].ID, retry.StatusSuccess)
	for _, q := range []string{w.names().Ready(), w.names().Level(3)} {
		broker.Ctl("eval", `ra:force_delete_server(quorum_queues, {list_to_atom("%2F_`+q+`"), node()}).`)
	}
	broker.Kill()
	broker.Start()
	w.awaitEvents(consumer.EventHealed, 1)
	w.await(w.enqueue(publisher.Task{Scene: "order", Args: order{2}})[0].ID, retry.StatusSuccess)
}
