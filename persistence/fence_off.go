//go:build spillway_nofence

package persistence

// A broken build, on purpose: see fence.go.
const (
	finishFence = `true`
	renewFence  = `true`
)
