package main

import (
	"slices"
	"testing"
	"time"
)

func TestPlanFollowsFromTheSeed(t *testing.T) {
	for _, load := range []time.Duration{10 * time.Second, 25 * time.Second, time.Minute, time.Hour} {
		for seed := range uint64(50) {
			plan := newPlan(seed, load)
			if !slices.Equal(plan, newPlan(seed, load)) {
				t.Fatalf("seed %d, %v: two plans", seed, load)
			}
			seen := map[kind]int{}
			for i, f := range plan {
				seen[f.Kind]++
				if f.At < 0 || f.At >= load || i > 0 && f.At < plan[i-1].At {
					t.Errorf("seed %d, %v: fault %d at %v", seed, load, i, f.At)
				}
			}
			for _, k := range kinds() {
				if seen[k] == 0 {
					t.Errorf("seed %d, %v: no %s", seed, load, k)
				}
			}
		}
	}
	if slices.Equal(newPlan(1, time.Minute), newPlan(2, time.Minute)) {
		t.Error("two seeds, one plan")
	}
}

func TestFates(t *testing.T) {
	seen := map[fate]int{}
	for i := range 2000 {
		key := string(rune('a'+i%26)) + string(rune('0'+i/26%10)) + string(rune('A'+i/260))
		if f := fateOf(7, key, 1); f != fateOf(7, key, 1) {
			t.Fatalf("%s: two fates", key)
		}
		seen[fateOf(7, key, 1)]++
	}
	for _, f := range []fate{fine, transient, wait429, permanent, cutAfter, cutBefore, slow, late} {
		if seen[f] == 0 {
			t.Errorf("never: %s", f)
		}
	}
}
