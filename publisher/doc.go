// Package publisher is the helper that a service calls to hand work over.
//
//   - Do calls at once, tries again a few times after short pauses (the local
//     tier), and only what still fails is remembered (the durable tier).
//   - Record stores the task before it calls, so that a call is not forgotten
//     even if the process dies in it.
//   - Enqueue and EnqueueMany remember tasks for consumers to run.
//   - EnqueueTx remembers tasks inside the caller's own transaction, so that they
//     exist exactly if the caller's change does; Wake then hurries them along.
//
// Postgres is the truth, a message is a hint. Every method returns when the row
// is committed; its wake-up is published behind the caller's back. A broker that
// is down, blocked or silent never holds a caller up: what it did not confirm is
// noted in the row, and a scan publishes it later. While Postgres is away, Do,
// Enqueue and EnqueueMany send the whole task to the service's submit queue and wait
// for the broker's confirm; a consumer stores it later. Only with both servers away is
// a task not recorded.
package publisher
