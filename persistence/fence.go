//go:build !spillway_nofence

package persistence

// Fencing: a write to a held task names the claim's token, and finds no row once the claim is another's. The tag
// spillway_nofence switches it off, so that chaos/ can show that it finds what happens then. It is for nothing else.
const (
	finishFence = `t.claim_token = NULLIF(r.token, '')::uuid`
	renewFence  = `t.claim_token = c.token`
)
