// Package retry is the domain of Spillway: what a task is, which states it may
// pass through, how errors are classed, how long to wait and when to stop.
//
// The package is pure. It reads no clock, no random source and does no I/O
// (lint forbids it), so that every decision can be recomputed later from what
// was recorded. All functions and methods may be called concurrently.
package retry
