package persistence_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/spillway-mq/spillway/persistence"
	"github.com/spillway-mq/spillway/persistence/storetest"
	"github.com/spillway-mq/spillway/retry"
)

func TestSmoke(t *testing.T) {
	s := storetest.Open(t)
	ctx := t.Context()
	ck := func(err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%v", err)
		}
	}
	ck(s.CheckSchema(ctx))
	ev := &persistence.Event{Reason: retry.ReasonEnqueued, Actor: "me", Facts: &retry.Facts{TaskID: 1, Class: retry.ClassTransient}, Decision: &retry.Decision{Status: retry.StatusWait}}
	in, err := s.Insert(ctx, []persistence.NewTask{{Scene: "a", Key: "k", Args: []byte("x\x00\xff"), Headers: map[string]string{"a": "b"}}, {Scene: "a", Args: nil, Event: ev, Deadline: time.Hour, Workflow: "w"}})
	ck(err)
	t.Logf("%+v", in)
	ids := []int64{in[0].ID, in[1].ID}
	tok := uuid.NewString()
	cl, err := s.Claim(ctx, persistence.ClaimRequest{IDs: ids, Scenes: []string{"a"}, Token: tok, By: "me", Lease: time.Minute})
	ck(err)
	t.Logf("%+v", cl)
	claims := []persistence.Claim{{ID: ids[0], Token: tok}, {ID: ids[1], Token: tok}}
	kept, err := s.Renew(ctx, time.Minute, claims)
	ck(err)
	t.Log(kept)
	fin, err := s.Finish(ctx, []persistence.Result{{Claim: claims[0], Status: retry.StatusWait, Reason: retry.ReasonScheduleRetry, Delay: time.Second, Class: retry.ClassTransient, Error: "boo", Event: ev}})
	ck(err)
	t.Log(fin)
	rel, err := s.Release(ctx, claims[1:])
	ck(err)
	t.Log(rel)
	w, err := s.Wakes(ctx, ids)
	ck(err)
	t.Log(w)
	w, err = s.Redispatch(ctx, ids, time.Second)
	ck(err)
	t.Log(w)
	ck(s.Undelivered(ctx, ids))
	w, err = s.Undispatched(ctx, 10)
	ck(err)
	t.Log(w)
	ck(s.Dispatched(ctx, w))
	ex, err := s.Expired(ctx, []string{"a"}, 0, 10)
	ck(err)
	t.Log(ex)
	_, err = s.Expire(ctx, []persistence.Result{{Claim: claims[0], Status: retry.StatusWait, Event: ev}})
	ck(err)
	n, err := s.Sweep(ctx, 0, 10)
	ck(err)
	t.Log(n)
	e, ok, err := s.Lead(ctx, "me", time.Minute)
	ck(err)
	t.Log(e, ok)
	ck(s.Resign(ctx, "me"))
	list, err := s.List(ctx, persistence.Filter{})
	ck(err)
	t.Log(len(list))
	c, err := s.Count(ctx)
	ck(err)
	t.Log(c)
	evs, err := s.Events(ctx, ids[0])
	ck(err)
	t.Logf("%+v", evs)
	tk, err := s.Operate(ctx, persistence.Action{Verb: persistence.Retry, ID: ids[0], Actor: "me"})
	ck(err)
	t.Logf("%+v", tk)
	tk, err = s.Operate(ctx, persistence.Action{Verb: persistence.Cancel, ID: ids[0], Actor: "me", Note: "n"})
	ck(err)
	t.Logf("%+v", tk)
	v, err := s.SavePolicy(ctx, "a", retry.Rules{})
	ck(err)
	r, err := s.Policy(ctx, "a", v)
	ck(err)
	t.Log(v, r)
}
