// Package consumer runs a service's tasks: it reads wake-ups, claims the rows
// that they name, runs the scenes' handlers and writes down how they ended. It also
// stores the tasks of the service's submit queue.
//
// One file per background role (see Run for who starts and ends them):
//
//	submit.go     owns the AMQP channel of the submit queue; stores whole tasks
//	receive.go    owns the AMQP channel of the ready queue; acknowledges
//	claim.go      owns what was received; claims in batches, starts handlers
//	run.go        one goroutine a task: the handler
//	steps.go      its way through Check, Query, Execute and Callback
//	finish.go     writes results in batches, then publishes the next wake-ups
//	heartbeat.go  renews all leases in one statement
//	upkeep.go     wake-ups of what cannot run here; the reaper's connections
package consumer
