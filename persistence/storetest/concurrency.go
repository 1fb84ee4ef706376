package storetest

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func concurrencyTests(add adder) {
	add("Concurrency/overlapping claims take each task once", func(h *harness) {
		const workers, tasks, batch = 8, 200, 50
		ids := h.add(tasks)
		var mu sync.Mutex
		got := map[int64]int{}
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range 3 * tasks / batch {
					pick := make([]int64, batch)
					for i := range pick {
						pick[i] = ids[rand.IntN(tasks)]
					}
					claimed, err := h.Store.Claim(h.ctx, persistence.ClaimRequest{IDs: pick, Scenes: []string{scene}, Token: uuid.NewString(), Lease: time.Hour})
					if err != nil {
						h.Errorf("claim: %v", err)
						return
					}
					mu.Lock()
					for _, c := range claimed {
						got[c.ID]++
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		_, rest := h.claim(ids...)
		for _, c := range rest {
			got[c.ID]++
		}
		same(h, "tasks claimed", len(got), tasks)
		for id, n := range got {
			if n != 1 {
				h.Errorf("task %d was claimed %d times", id, n)
			}
			same(h, "attempt", h.get(id).Attempt, 1)
		}
	})
	add("Concurrency/equal keys become one task", func(h *harness) {
		const workers, keys = 8, 40
		var mu sync.Mutex
		created, ids := 0, map[string]map[int64]bool{}
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				var tasks []persistence.NewTask
				for _, i := range rand.Perm(keys) {
					tasks = append(tasks, persistence.NewTask{Scene: scene, Key: "k" + strconv.Itoa(i), Workflow: "w" + strconv.Itoa(i), Deadline: time.Hour})
				}
				in, err := h.Store.Insert(h.ctx, tasks)
				if err != nil {
					h.Errorf("insert: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for i, r := range in {
					if r.Conflict {
						h.Errorf("equal task conflicts: %+v", r)
					}
					if r.Created {
						created++
					}
					if ids[tasks[i].Key] == nil {
						ids[tasks[i].Key] = map[int64]bool{}
					}
					ids[tasks[i].Key][r.ID] = true
				}
			})
		}
		wg.Wait()
		same(h, "created", created, keys)
		for key, set := range ids {
			if len(set) != 1 {
				h.Errorf("key %s is %d tasks", key, len(set))
			}
		}
	})
	add("Concurrency/one key reused by many is one task at a time", func(h *harness) {
		h.end(h.take(h.insert(persistence.NewTask{Key: "k"})[0].ID), retry.StatusSuccess)
		var wg sync.WaitGroup
		var mu sync.Mutex
		created := 0
		for range 8 {
			wg.Go(func() {
				in, err := h.Store.Insert(h.ctx, []persistence.NewTask{{Scene: scene, Key: "k", ReuseKey: true}})
				if err != nil {
					h.Errorf("insert: %v", err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if in[0].Created {
					created++
				}
			})
		}
		wg.Wait()
		same(h, "created", created, 1)
	})
	// Every pair of statements that meet on the same rows, each with the rows in an order of
	// its own. A deadlock would show as the second that Postgres takes to notice it.
	add("Concurrency/batches that share rows do not lock each other out", func(h *harness) {
		const tasks = 60
		ids := h.add(tasks)
		token, got := h.claim(ids...)
		same(h, "claimed", len(got), tasks)
		shuffled := func() []int64 {
			out := append([]int64(nil), ids...)
			rand.Shuffle(tasks, func(i, j int) { out[i], out[j] = out[j], out[i] })
			return out
		}
		claims := func(token string) []persistence.Claim {
			var out []persistence.Claim
			for _, id := range shuffled() {
				out = append(out, persistence.Claim{ID: id, Token: token})
			}
			return out
		}
		var slowest time.Duration
		var mu sync.Mutex
		run := func(wg *sync.WaitGroup, name string, f func() error) {
			wg.Go(func() {
				for range 15 {
					start := time.Now()
					if err := f(); err != nil {
						h.Errorf("%s: %v", name, err)
						return
					}
					mu.Lock()
					slowest = max(slowest, time.Since(start))
					mu.Unlock()
				}
			})
		}
		var wg sync.WaitGroup
		run(&wg, "renew", func() error { _, err := h.Store.Renew(h.ctx, time.Hour, claims(token)); return err })
		run(&wg, "finish", func() error {
			var results []persistence.Result
			for _, c := range claims(token) {
				r := result(c, retry.StatusWait)
				r.Event = &persistence.Event{Actor: "w"}
				results = append(results, r)
			}
			_, err := h.Store.Finish(h.ctx, results)
			return err
		})
		run(&wg, "release", func() error { _, err := h.Store.Release(h.ctx, claims(token)); return err })
		for range 2 {
			run(&wg, "claim", func() error {
				_, err := h.Store.Claim(h.ctx, persistence.ClaimRequest{IDs: shuffled(), Scenes: []string{scene}, Token: token, Lease: time.Hour})
				return err
			})
		}
		run(&wg, "redispatch", func() error { _, err := h.Store.Redispatch(h.ctx, shuffled(), 0); return err })
		run(&wg, "undelivered", func() error { return h.Store.Undelivered(h.ctx, shuffled()) })
		run(&wg, "dispatched", func() error {
			w, err := h.Store.Wakes(h.ctx, shuffled())
			if err != nil {
				return err
			}
			rand.Shuffle(len(w), func(i, j int) { w[i], w[j] = w[j], w[i] })
			return h.Store.Dispatched(h.ctx, w)
		})
		run(&wg, "expire", func() error {
			var results []persistence.Result
			for _, c := range claims(token) {
				results = append(results, result(c, retry.StatusWait))
			}
			_, err := h.Store.Expire(h.ctx, results)
			return err
		})
		wg.Wait()
		h.Logf("slowest statement: %v", slowest)
	})
}
