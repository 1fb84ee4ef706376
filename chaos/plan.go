package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// The processes, and what each talks to.
const (
	consumers  = 3
	publishers = 2
)

func slots() []string {
	var out []string
	for i := range consumers {
		out = append(out, fmt.Sprintf("%s-%d", roleConsumer, i+1))
	}
	for i := range publishers {
		out = append(out, fmt.Sprintf("%s-%d", rolePublisher, i+1))
	}
	return out
}

func peers() []string { return []string{"postgres", "rabbitmq", "downstream"} }

// kind is a kind of fault. Long handlers and an other side that loses replies are no faults of the plan: the downstream
// does that all the time.
type kind string

const (
	killConsumer   kind = "kill consumer"   // SIGKILL; started again after Length
	killPublisher  kind = "kill publisher"  // the same
	pauseConsumer  kind = "pause consumer"  // SIGSTOP for Length
	pausePublisher kind = "pause publisher" // the same
	crashPostgres  kind = "crash postgres"  // immediate shutdown; started again after Length
	crashBroker    kind = "crash broker"    // SIGKILL; started again after Length
	cutLink        kind = "cut link"        // connections closed; new ones at once
	refuseLink     kind = "refuse link"     // connections closed, new ones refused for Length
	freezeLink     kind = "freeze link"     // bytes of both ways are kept back for Length
	delayLink      kind = "delay link"      // each piece of bytes comes some 100 ms late, for Length
	loseReplies    kind = "lose replies"    // what the server says is dropped for Length, then the connection ends
	purgeQueue     kind = "purge queue"
	deleteQueue    kind = "delete queue"
	memoryAlarm    kind = "memory alarm"       // for Length
	extraWakeups   kind = "duplicate wake-ups" // doubled, early and in disorder
)

func kinds() []kind {
	return []kind{killConsumer, killPublisher, pauseConsumer, pausePublisher, crashPostgres, crashBroker, cutLink, refuseLink, freezeLink,
		delayLink, loseReplies, purgeQueue, deleteQueue, memoryAlarm, extraWakeups}
}

// fault is one fault of a plan.
type fault struct {
	At     time.Duration // from the start of the load
	Kind   kind
	Target string // a process, "process/peer", a queue's short name; empty where there is no choice
	Length time.Duration
	Seed   uint64 // of what else is drawn when it strikes
}

// newPlan derives the faults of a run from its seed: the same for the same seed and load. All kinds come once in each
// round, in an order of the round's own; a paused consumer, which is what fencing is for, comes twice. Further rounds leave
// out the crashes of servers half of the time: while one is down little else can happen.
func newPlan(seed uint64, load time.Duration) []fault {
	r := rand.New(rand.NewPCG(seed, 1))
	count := max(int(load/(1200*time.Millisecond)), len(kinds())+1)
	first, last := min(2*time.Second, load/10), load-min(3*time.Second, load/5)
	var order []kind
	for round := 0; len(order) < count; round++ {
		var part []kind
		for _, k := range kinds() {
			if round > 0 && (k == crashPostgres || k == crashBroker) && r.IntN(2) == 0 {
				continue
			}
			part = append(part, k)
		}
		part = append(part, pauseConsumer)
		r.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
		order = append(order, part...)
	}
	order = order[:count]
	step := (last - first) / time.Duration(count)
	out := make([]fault, count)
	for i, k := range order {
		at := first + time.Duration(i)*step + time.Duration(r.Int64N(int64(step)))
		out[i] = fault{At: at.Round(time.Millisecond), Kind: k, Target: target(r, k), Length: length(r, k), Seed: r.Uint64()}
	}
	return out
}

// onlyPauses is a plan of what fencing is for, and nothing else: every 4 s a process is paused for over two leases, so that
// others take its tasks meanwhile. It is for builds that must be found out. Faults of the servers would be in the way: after an
// outage of Postgres no scan ends a lease for a while.
func onlyPauses(seed uint64, load time.Duration) []fault {
	r := rand.New(rand.NewPCG(seed, 4))
	var plan []fault
	for at := 3 * time.Second; at < load-4*lease; at += 4 * time.Second {
		k := pauseConsumer
		if len(plan)%4 == 3 {
			k = pausePublisher
		}
		d := 5*lease/2 + time.Duration(r.Int64N(int64(3*lease/2)))
		plan = append(plan, fault{At: at, Kind: k, Target: target(r, k), Length: d.Round(time.Millisecond)})
	}
	return plan
}

func target(r *rand.Rand, k kind) string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	switch k {
	case killConsumer, pauseConsumer:
		return fmt.Sprintf("%s-%d", roleConsumer, 1+r.IntN(consumers))
	case killPublisher, pausePublisher:
		return fmt.Sprintf("%s-%d", rolePublisher, 1+r.IntN(publishers))
	case crashPostgres:
		return "postgres"
	case crashBroker, memoryAlarm:
		return "rabbitmq"
	case cutLink, refuseLink, freezeLink, delayLink:
		return one(slots()...) + "/" + one(peers()...)
	case loseReplies:
		// Mostly Postgres': a statement that committed and whose answer is lost is what the store must live with.
		return one(slots()...) + "/" + one("postgres", "postgres", "rabbitmq", "downstream")
	case purgeQueue, deleteQueue:
		return one("ready", "ready", "level")
	case extraWakeups:
	}
	return ""
}

func length(r *rand.Rand, k kind) time.Duration {
	between := func(from, to time.Duration) time.Duration {
		return (from + time.Duration(r.Int64N(int64(to-from)))).Round(time.Millisecond)
	}
	switch k {
	case killConsumer, killPublisher:
		return between(0, 2*time.Second)
	case pauseConsumer, pausePublisher:
		return between(lease/2, 4*lease) // mostly over the lease
	case crashPostgres, crashBroker:
		return between(0, time.Second)
	case refuseLink, freezeLink:
		return between(lease/2, 3*lease)
	case delayLink:
		return between(lease, 3*lease)
	case loseReplies:
		return between(100*time.Millisecond, 1500*time.Millisecond)
	case memoryAlarm:
		return between(time.Second, 4*time.Second)
	case cutLink, purgeQueue, deleteQueue, extraWakeups:
	}
	return 0
}

func (f fault) String() string {
	s := fmt.Sprintf("%7.3f s  %-18s", f.At.Seconds(), f.Kind)
	if f.Target != "" {
		s += " " + f.Target
	}
	if f.Length > 0 {
		s += fmt.Sprintf(", %v", f.Length)
	}
	return s
}

func writePlan(out io.Writer, plan []fault) {
	for _, f := range plan {
		_, _ = fmt.Fprintln(out, f)
	}
}
