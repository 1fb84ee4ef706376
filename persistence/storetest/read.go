package storetest

import (
	"time"

	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/retry"
)

func readTests(add adder) {
	add("CheckSchema/fits", func(h *harness) { h.ok(h.Store.CheckSchema(h.ctx)) })
	add("Get/not found", func(h *harness) {
		_, err := h.Store.Get(h.ctx, 1<<40)
		h.is(err, retry.ErrNotFound)
		_, err = h.Other.Get(h.ctx, h.add(1)[0])
		h.is(err, retry.ErrNotFound)
		e, err := h.Store.Events(h.ctx, 1<<40)
		h.ok(err)
		same(h, "events", len(e), 0)
	})
	add("Events/of another service are not told", func(h *harness) {
		c := h.held()
		r := result(c, retry.StatusSuccess)
		r.Event = &persistence.Event{Actor: "w"}
		h.finish(r)
		e, err := h.Other.Events(h.ctx, c.ID)
		h.ok(err)
		same(h, "events", len(e), 0)
	})
	add("List/filters", func(h *harness) {
		in := h.insert(
			persistence.NewTask{Key: "a", Workflow: "w", Deadline: time.Hour},
			persistence.NewTask{Key: "b"},
			persistence.NewTask{Key: "a", Scene: "scene.b"},
			persistence.NewTask{Key: "d", Scene: "scene.c"},
		)
		done := h.in(retry.StatusSuccess)
		h.Shift(h, in[1].ID, CreatedAt, -2*time.Hour)
		foreign, err := h.Other.Insert(h.ctx, []persistence.NewTask{{Scene: scene}})
		h.ok(err)
		for _, tt := range []struct {
			name string
			f    persistence.Filter
			want []int64
		}{
			{"all", persistence.Filter{}, []int64{in[0].ID, in[1].ID, in[2].ID, in[3].ID, done.ID}},
			{"scene", persistence.Filter{Scenes: []string{"scene.b"}}, []int64{in[2].ID}},
			{"scenes", persistence.Filter{Scenes: []string{"scene.b", "scene.c", "none"}}, []int64{in[2].ID, in[3].ID}},
			{"status", persistence.Filter{Statuses: []retry.Status{retry.StatusSuccess}}, []int64{done.ID}},
			{"statuses", persistence.Filter{Statuses: []retry.Status{retry.StatusSuccess, retry.StatusWait}, Scenes: []string{scene}}, []int64{in[0].ID, in[1].ID, done.ID}},
			{"key", persistence.Filter{Key: "a"}, []int64{in[0].ID, in[2].ID}},
			{"key and scene", persistence.Filter{Key: "a", Scenes: []string{scene}}, []int64{in[0].ID}},
			{"workflow", persistence.Filter{Workflow: "w"}, []int64{in[0].ID}},
			{"old", persistence.Filter{MinAge: time.Hour}, []int64{in[1].ID}},
			{"young", persistence.Filter{MaxAge: time.Hour, Scenes: []string{scene}}, []int64{in[0].ID, done.ID}},
			{"nothing", persistence.Filter{Key: "none"}, nil},
			{"before", persistence.Filter{Before: in[1].ID, Scenes: []string{scene}}, []int64{in[0].ID}},
		} {
			got, err := h.Store.List(h.ctx, tt.f)
			h.ok(err)
			ids := map[int64]bool{}
			for i, t := range got {
				ids[t.ID] = true
				if i > 0 && got[i-1].ID <= t.ID {
					h.Errorf("%s: not newest first", tt.name)
				}
			}
			if len(ids) != len(tt.want) {
				h.Errorf("%s: got %v, want %v", tt.name, ids, tt.want)
			}
			for _, id := range tt.want {
				if !ids[id] {
					h.Errorf("%s: got %v, want %v", tt.name, ids, tt.want)
				}
			}
			if ids[foreign[0].ID] {
				h.Errorf("%s: tells another service's task", tt.name)
			}
		}
	})
	add("List/limit and pages", func(h *harness) {
		h.add(120)
		all, err := h.Store.List(h.ctx, persistence.Filter{})
		h.ok(err)
		same(h, "tasks without a limit", len(all), 100)
		seen := map[int64]bool{}
		for before := int64(0); ; {
			page, err := h.Store.List(h.ctx, persistence.Filter{Limit: 50, Before: before})
			h.ok(err)
			if len(page) == 0 {
				break
			}
			for _, t := range page {
				seen[t.ID] = true
				before = t.ID
			}
		}
		same(h, "tasks by pages", len(seen), 120)
	})
	add("Count/by scene, status and reason", func(h *harness) {
		h.in(retry.StatusSuccess)
		h.in(retry.StatusSuccess)
		h.in(retry.StatusFailed)
		h.in(retry.StatusCancelled)
		h.insert(persistence.NewTask{Scene: "scene.b"})
		_, err := h.Other.Insert(h.ctx, []persistence.NewTask{{Scene: scene}})
		h.ok(err)
		got, err := h.Store.Count(h.ctx)
		h.ok(err)
		want := map[persistence.Count]bool{
			{Scene: scene, Status: retry.StatusSuccess, Tasks: 2, Attempts: 2}:                                           true,
			{Scene: scene, Status: retry.StatusFailed, StopReason: retry.ReasonFailPermanent, Tasks: 1, Attempts: 1}:     true,
			{Scene: scene, Status: retry.StatusCancelled, StopReason: retry.ReasonOperatorCancel, Tasks: 1, Attempts: 1}: true,
			{Scene: "scene.b", Status: retry.StatusWait, Tasks: 1}:                                                       true,
		}
		same(h, "counts", len(got), len(want))
		for _, c := range got {
			if !want[c] {
				h.Errorf("unexpected count %+v", c)
			}
		}
	})
}
