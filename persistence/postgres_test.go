package persistence_test

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPostgres(t *testing.T) { storetest.Run(t, storetest.Postgres) }

// Nothing may wait for a second connection while it holds one.
func TestOneConnection(t *testing.T) {
	s := storetest.OpenConfig(t, persistence.Config{MaxConns: 1})
	tasks := make([]persistence.NewTask, 600) // more than a block of ids
	for i := range tasks {
		tasks[i] = persistence.NewTask{Scene: "a", Workflow: "w", Deadline: time.Hour}
	}
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.InsertTx(t.Context(), tx, tasks); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := s.Insert(t.Context(), append([]persistence.NewTask{{Scene: "a", Key: "k", ReuseKey: true}}, tasks...)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A person's hand on the table must not stop the tasks beside.
func TestOddHeaders(t *testing.T) {
	schema := storetest.Schema(t)
	s := admin(t, schema)
	in, err := s.Insert(t.Context(), []persistence.NewTask{{Scene: "a", Key: "k"}, {Scene: "a", Key: "j"}})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, s, `UPDATE `+schema+`.task SET headers = '{"n": 1, "s": "x"}' WHERE key = 'k'`)
	exec(t, s, `UPDATE `+schema+`.task SET headers = '[1]' WHERE key = 'j'`)
	got, err := s.Claim(t.Context(), persistence.ClaimRequest{IDs: []int64{in[0].ID, in[1].ID}, Scenes: []string{"a"}, Token: uuid.NewString(), Lease: time.Minute})
	if err != nil || len(got) != 2 {
		t.Fatalf("claimed %d, %v", len(got), err)
	}
	task, err := s.Get(t.Context(), in[0].ID)
	if err != nil || task.Headers["n"] != "1" || task.Headers["s"] != "x" || task.Status != retry.StatusExecuting {
		t.Errorf("headers %v, %v", task.Headers, err)
	}
}
