// Package persistence keeps tasks in Postgres: schema and migrations, and one
// file per concern with its SQL beside the code that runs it.
//
// All times are the database's (clock_timestamp()): the package passes durations
// in and gets instants out, so that a worker's wrong clock changes nothing.
//
// lib/pq and database/sql may run a statement twice when a connection breaks
// after it was sent. Every statement here is safe under that: ids and claim tokens are
// made by the client before the first run.
//
// Nothing here needs a session (no LISTEN, no session-level advisory locks, no
// named prepared statements), so a transaction pooler may stand in between.
package persistence
