package main

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/spillway-mq/spillway/consumer"
	"github.com/spillway-mq/spillway/retry"
)

// What both sides agree on.
const (
	service     = "chaos"
	schema      = "spillway_chaos"       // the product's tables
	auditSchema = "spillway_chaos_audit" // the harness's own
	lease       = 2 * time.Second
)

// args are the arguments of every scene.
type args struct {
	Key string `json:"key"`
}

// scene is a kind of task under test. Each has a file of its own.
type scene struct {
	retry.Scene
	// once: an effect happens twice only after a person's or Query's word.
	once bool
	// books: a consumer's SUCCESS needs a Callback, and nothing is executed after one.
	books bool
	// handle makes its handler in a consumer process.
	handle func(s retry.Scene, c *caller) consumer.Handler
}

func scenes() []scene { return []scene{repeatScene(), reviewScene(), askScene()} }

func sceneOf(name string) (scene, bool) {
	for _, s := range scenes() {
		if s.Name == name {
			return s, true
		}
	}
	return scene{}, false
}

func retryScenes() []retry.Scene {
	var out []retry.Scene
	for _, s := range scenes() {
		out = append(out, s.Scene)
	}
	return out
}

func policy() retry.Policy {
	return retry.Policy{Kind: retry.Exponential, Base: 300 * time.Millisecond, Cap: 2 * time.Second, MaxAttempts: 5}
}

func local() retry.Local { return retry.Local{Retries: 2, Pause: 20 * time.Millisecond} }

// draw is a number from 0 to 99 that follows from the seed and what it is drawn for.
func draw(seed uint64, what string, args ...any) int {
	h := fnv.New64a()
	_ = binary.Write(h, binary.BigEndian, seed)
	_, _ = fmt.Fprint(h, what, args)
	x := h.Sum64() // the low bits of FNV are poor for short inputs
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return int(x % 100)
}
