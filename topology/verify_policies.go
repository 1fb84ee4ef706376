package topology

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Why a policy's key is dangerous: on any queue of ours, on those that
// consumers read, on those that people look into, and on the delay queues. For numbers the broker takes the
// lower of argument and policy, so a policy can shorten a level.
var (
	dangerAnywhere = map[string]string{
		"expires": "the broker deletes the queue with all messages when it is not used for that long",
	}
	dangerWhenRead = map[string]string{
		"message-ttl": "messages that wait longer are dead-lettered unseen",
	}
	dangerWhenLookedAt = map[string]string{
		"delivery-limit": "each look counts as a delivery, and what was looked at more often is dropped",
	}
	dangerInDelay = map[string]string{
		"message-ttl":             "a lower TTL wakes tasks early",
		"dead-letter-exchange":    "wake-ups must go to the level's own exchange",
		"dead-letter-routing-key": "the routing key says how long to wait still",
		"dead-letter-strategy":    "the strategy is part of the declaration",
		"overflow":                "at-least-once dead-lettering needs reject-publish",
		"max-length":              "a full level refuses wake-ups or, if classic, wakes them early",
		"max-length-bytes":        "a full level refuses wake-ups or, if classic, wakes them early",
	}
	dangerAtEntry = map[string]string{
		"alternate-exchange": "the broker no longer returns what it cannot route, so publishers do not hear of it",
	}
)

// checkPolicies finds policies that change what the plan relies on. It works
// out itself which policy applies to what: what the API says is in effect for
// a queue comes from its statistics, seconds late or not at all.
func (v *verifier) checkPolicies(ctx context.Context, m *management) error {
	for _, kind := range []string{"policies", "operator-policies"} {
		var list []apiPolicy
		if err := m.get(ctx, &list, kind, m.vhost); errors.Is(err, errRefused) {
			v.addUnseen(kind, "policymaker")
			continue
		} else if err != nil {
			return err
		}
		v.checkPolicyList(m.vhost, kind, list)
	}
	return nil
}

func (v *verifier) checkPolicyList(vhost, kind string, list []apiPolicy) {
	names := v.cfg.Names()
	// Of those that match, the one with the highest priority applies, alone.
	slices.SortStableFunc(list, func(a, b apiPolicy) int { return b.Priority - a.Priority })
	patterns := make([]*regexp.Regexp, len(list))
	for i, p := range list {
		re, err := regexp.Compile(p.Pattern)
		if err != nil {
			// The broker's patterns are Perl's, which can do more than Go's.
			v.add(Difference{
				Severity: Unchecked, Problem: ProblemUnseen, Property: policyName(kind, p.Name),
				Got: fmt.Sprintf("pattern %q is not understood", p.Pattern), Fix: "check by hand that it does not match " + names.Delay(),
			})
			continue
		}
		patterns[i] = re
	}
	check := func(entity EntityKind, name string, applyTo []string, dangers ...map[string]string) {
		i := 0
		for i < len(list) && (patterns[i] == nil || !slices.Contains(applyTo, list[i].ApplyTo) || !patterns[i].MatchString(name)) {
			i++
		}
		if i == len(list) {
			return
		}
		policy := policyName(kind, list[i].Name)
		for _, key := range Arguments(list[i].Definition).sortedKeys() {
			for _, danger := range dangers {
				if why, ok := danger[key]; ok {
					v.add(Difference{
						Severity: Risk, Problem: ProblemPolicy, Entity: entity, Name: name, Property: key, Want: "none",
						Got: fmt.Sprintf("%v by %s", list[i].Definition[key], policy),
						Fix: fmt.Sprintf("narrow the pattern of %s in virtual host %q so that it does not match, or clear it: %s", policy, vhost, why),
					})
				}
			}
		}
	}
	for _, e := range v.plan.Exchanges {
		if _, has := e.Arguments["alternate-exchange"]; !has && e.Name != names.Unrouted() {
			check(KindExchange, e.Name, []string{"all", "exchanges"}, dangerAtEntry)
		}
	}
	for _, q := range v.plan.Queues {
		dangers := []map[string]string{dangerAnywhere}
		switch {
		case strings.HasPrefix(q.Name, names.Delay()+"."):
			dangers = append(dangers, dangerInDelay)
		case q.Name == names.Ready(), q.Name == names.Submit():
			dangers = append(dangers, dangerWhenRead)
		case v.cfg.Kind == Quorum: // parked and unrouted
			dangers = append(dangers, dangerWhenLookedAt)
		}
		check(KindQueue, q.Name, []string{"all", "queues", string(v.cfg.Kind) + "_queues"}, dangers...)
	}
}

func policyName(kind, name string) string {
	if kind == "operator-policies" {
		return fmt.Sprintf("operator policy %q", name)
	}
	return fmt.Sprintf("policy %q", name)
}
