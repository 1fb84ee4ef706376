// Package dlx looks after messages that nobody could handle: those in a service's parked and unrouted queues. An operator lists
// them, puts them back to where they came from, or drops them.
//
// Every operation walks a queue from its head, holding what it passes over without an ack. Closing the connection gives the
// held messages back in their old order; a crash does the same. So looking loses nothing, and while it lasts others (a second
// walk, too) do not see what is held.
package dlx
