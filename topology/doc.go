// Package topology names, plans, makes and checks what a service owns on
// RabbitMQ: its delayed exchange, the binary tiers behind it, and the queues
// for due, submitted, parked and unrouted messages.
//
// # Binary tiers
//
// Level n is a queue whose messages live for 100 ms·2ⁿ and are then
// dead-lettered to the level's own topic exchange. A wake-up's routing key is
// its delay in units of 100 ms as 14 words of one bit, highest first, and then
// the service:
//
//	0.0.0.0.0.0.0.0.0.0.1.0.1.0.orders     10 units = 1 s
//
// At `delay`, the entry, a binding per level matches the keys whose highest set
// bit is that level's. At level n's exchange, a binding per lower level matches
// the keys whose next set bit is that level's. When no bit remains, an
// exchange-to-exchange binding leads to `due`. So zero bits cost nothing, and
// the number of hops is the number of set bits. At each exchange exactly one
// binding matches any key that can get there: 15 bindings at the entry, n+1 at
// level n, 120 in all for the tiers and 4 for the rest.
//
// # Why the longest wait comes first
//
// The sum of the waits is the same in either order, and so is the cost. All
// messages of one level have the same TTL, so a level is a plain FIFO whose
// head is always the next to expire: nothing waits behind a message with more
// time left, whatever the order of levels. What the order changes is what a
// depth means. Longest first, a message in level n is due in less than
// 100 ms·2ⁿ⁺¹, so that the sum of the depths up to level n bounds what comes due
// within that time; water flows down the levels, as it does in the dam. Shortest
// first, a message that waits in level 13 could be due at any moment. The waits
// that a broker's restart could interrupt also gather near the due time, where a
// late hop would be noticed anyway, instead of spending a second window of
// exposure right after the publish.
//
// # What is declared and what is left to operators
//
// Structural arguments (type, TTL, dead-letter exchange and strategy, overflow)
// are in the declaration: without them the tiers would not work. Tunables are
// left to operator policies, because arguments cannot be changed without a new
// queue: max-length and max-length-bytes of `ready`, `submit`, `parked` and
// `unrouted`; delivery-limit of `ready` and `submit` (none before RabbitMQ 4.0,
// 20 from it on); consumer-timeout; queue-leader-locator. Policies must not touch
// the delay queues: Verify reports those that do.
//
// In `parked` and `unrouted` the delivery limit is structural. People look into
// these queues, each look is a delivery that is put back, and a quorum queue
// drops what was delivered more often than its limit allows, since there is no
// dead-letter exchange behind these two. So it is declared, as a number that is
// never reached. Leaving it out means 20 on RabbitMQ 4.0 to 4.2, and -1 means no
// limit from 4.0 on but "drop what comes back" before. Of argument and policy the
// lower counts: Verify reports policies with a delivery-limit there.
//
// Quorum queues that dead-letter do so at least once, which needs overflow
// reject-publish. It also makes a length limit on `ready` push back into the
// tiers instead of throwing wake-ups into `parked`. On RabbitMQ 3.10 and 3.11
// at-least-once needs the feature flag stream_queue (on by default; if a broker
// was upgraded, `rabbitmqctl enable_feature_flag all`). Classic queues
// dead-letter at most once: a wake-up can be lost when a node dies, and the scan
// then costs the task some delay.
//
// A level that cannot hand on a message keeps it and, in the end, blocks. So
// every exchange that receives dead letters has `unrouted` as its alternate
// exchange. `delay` and `submit` have none: publishers use the mandatory flag,
// and the broker does not return a message that an alternate exchange took.
//
// # Contexts
//
// The AMQP client's calls take no context. The functions here run them in a
// goroutine of their own and return when the context ends. The goroutine then
// stops at its next step: as soon as the broker answers, or when the connection
// is closed, which remains the caller's to do. They open channels of their own
// and never use the caller's; several may run on one connection at once.
package topology
