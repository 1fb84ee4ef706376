package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-mq/spillway/retry"
)

// fate is how the other side meets a call.
type fate string

const (
	fine      fate = "fine"
	transient fate = "503, no effect"
	wait429   fate = "429, no effect"
	permanent fate = "400, no effect"
	cutAfter  fate = "effect, reply cut"
	cutBefore fate = "no effect, reply cut"
	slow      fate = "slow, effect at the end" // over leases
	late      fate = "effect, late reply"      // over leases
)

// fateOf draws a call's fate. Slowness belongs to the key, so that a repetition meets it again; the rest is drawn for each
// attempt anew. The inline tries of one key share a fate, so that some go to the durable tier.
func fateOf(seed uint64, key string, attempt int) fate {
	switch n := draw(seed, "slow", key); {
	case n < 8:
		return slow
	case n < 16:
		return late
	}
	switch n := draw(seed, "fate", key, attempt); {
	case n < 60:
		return fine
	case n < 78:
		return transient
	case n < 83:
		return wait429
	case n < 86:
		return permanent
	case n < 95:
		return cutAfter
	default:
		return cutBefore
	}
}

// slowness of a call that is slow or late: 0.6 to 4.6 leases.
func slowness(seed uint64, key string, attempt int) time.Duration {
	return lease*6/10 + lease*time.Duration(draw(seed, "slowness", key, attempt))/25
}

// callHead says who calls for what.
type callHead struct {
	Scene   string `json:"scene"`
	Key     string `json:"key"`
	Task    int64  `json:"task"` // zero for an inline run
	Attempt int    `json:"attempt"`
	// Run is the claim token, or inline:PROCESS:KEY:TRY.
	Run     string `json:"run"`
	Step    string `json:"step"`
	Process string `json:"process"`
}

// call is an entry of the ledger.
type call struct {
	callHead
	Fate   fate
	Said   string // to Check and Query; booked for a Callback that was
	Begin  time.Time
	Effect time.Time // zero: none
	End    time.Time // zero: under way
}

// downstream is the other side. Its ledger is never wrong: what is in it happened.
type downstream struct {
	seed     uint64
	server   *http.Server
	listener net.Listener
	done     chan struct{}
	effected chan struct{} // cap 1: an effect came

	mu     sync.Mutex
	ledger map[string][]*call // by scene and key
}

func startDownstream(seed uint64) (*downstream, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &downstream{seed: seed, listener: l, done: make(chan struct{}), effected: make(chan struct{}, 1), ledger: map[string][]*call{}}
	d.server = &http.Server{Handler: http.HandlerFunc(d.serve), ReadHeaderTimeout: time.Minute}
	go func() { // ends with stop
		defer close(d.done)
		_ = d.server.Serve(l)
	}()
	return d, nil
}

func (d *downstream) addr() string { return d.listener.Addr().String() }

func (d *downstream) stop() {
	_ = d.server.Close()
	<-d.done
}

func (d *downstream) serve(w http.ResponseWriter, r *http.Request) {
	c := &call{Begin: time.Now()}
	if err := json.NewDecoder(r.Body).Decode(&c.callHead); err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	c.Fate = fateOf(d.seed, c.Key, c.Attempt)
	d.mu.Lock()
	at := place(c.Scene, c.Key)
	d.ledger[at] = append(d.ledger[at], c)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		c.End = time.Now()
	}()
	if c.Step != stepExecute {
		d.answer(w, c)
		return
	}
	switch c.Fate {
	case transient:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case wait429:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	case permanent:
		http.Error(w, "no such order", http.StatusBadRequest)
	case cutBefore:
		hangUp(w)
	case cutAfter:
		d.effect(c)
		hangUp(w)
	case slow:
		if !wait(r.Context(), slowness(d.seed, c.Key, c.Attempt)) {
			return // the caller hung up
		}
		d.effect(c)
		w.WriteHeader(http.StatusNoContent)
	case late:
		d.effect(c)
		if wait(r.Context(), slowness(d.seed, c.Key, c.Attempt)) {
			w.WriteHeader(http.StatusNoContent)
		}
	case fine:
		d.effect(c)
		w.WriteHeader(http.StatusNoContent)
	}
}

func place(scene, key string) string { return scene + "\x00" + key }

func (d *downstream) effect(c *call) {
	d.mu.Lock()
	c.Effect = time.Now()
	d.mu.Unlock()
	select {
	case d.effected <- struct{}{}:
	default:
	}
}

func hangUp(w http.ResponseWriter) {
	if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

// calls returns a key's calls so far, in order.
func (d *downstream) calls(scene, key string) []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []call
	for _, c := range d.ledger[place(scene, key)] {
		out = append(out, *c)
	}
	return out
}

// all returns every call so far, by scene and key.
func (d *downstream) all() map[string][]call {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string][]call, len(d.ledger))
	for at, list := range d.ledger {
		for _, c := range list {
			out[at] = append(out[at], *c)
		}
	}
	return out
}

// totals counts calls that execute, effects, and those calls that lasted over a lease.
func (d *downstream) totals() (calls, effects, long int) {
	for _, list := range d.all() {
		list = slices.DeleteFunc(list, func(c call) bool { return c.Step != stepExecute })
		calls += len(list)
		effects += len(slices.DeleteFunc(slices.Clone(list), func(c call) bool { return c.Effect.IsZero() }))
		for _, c := range list {
			if !c.End.IsZero() && c.End.Sub(c.Begin) > lease {
				long++
			}
		}
	}
	return calls, effects, long
}

// caller is a process's way to the other side.
type caller struct {
	url     string
	process string
	client  *http.Client
}

func newCaller(addr, process string) *caller {
	return &caller{url: "http://" + addr + "/", process: process, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}}}
}

// call makes a call whose success says all.
func (c *caller) call(ctx context.Context, head callHead) error {
	_, err := c.ask(ctx, head)
	return err
}

// ask returns what the other side says.
func (c *caller) ask(ctx context.Context, head callHead) (string, error) {
	head.Process = c.process
	body, err := json.Marshal(head)
	if err != nil {
		return "", retry.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(string(body)))
	if err != nil {
		return "", retry.Permanent(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return "", fmt.Errorf("call downstream: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, retry.MaxHTTPBody))
	if err != nil {
		return "", fmt.Errorf("read downstream's answer: %w", err)
	}
	why := errors.New(resp.Status + ": " + strings.TrimSpace(string(text)))
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable:
		return "", retry.Transient(why)
	case resp.StatusCode == http.StatusTooManyRequests:
		return "", retry.After(time.Second, retry.Transient(why))
	case resp.StatusCode >= 400:
		return "", retry.Permanent(why)
	}
	return string(text), nil
}
