// Package demo runs the pipeline for real in front of a person: two consumer
// processes, a downstream over HTTP that misbehaves, a publisher, and one consumer that is
// killed midway. At the end it checks the promises against what the downstream
// saw and what the store holds.
//
//	downstream.go  the HTTP server and its ledger
//	scenes.go      what both sides agree on, and the call
//	worker.go      a consumer process; it tells its parent what happens on stdout
//	run.go         the parent
//	report.go      the promises and the table
package demo
