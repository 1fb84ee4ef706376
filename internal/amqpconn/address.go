package amqpconn

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/spillway-mq/spillway/internal/mask"
	"github.com/spillway-mq/spillway/retry"
)

// Allowed says what a URL looks like.
const Allowed = "like amqp://user:password@host:5672/vhost or amqps://…, with commas between several hosts of one cluster " +
	"(percent-encode what is special in a password)"

// parameters are what may follow the ? of a URL; the client library reads them. It would pass
// over others, such as one that is misspelt.
var parameters = map[string]bool{
	"auth_mechanism": true, "cacertfile": true, "certfile": true, "channel_max": true, "connection_timeout": true, "heartbeat": true,
	"keyfile": true, "server_name_indication": true,
}

// ParseURL returns the addresses of a URL, one URL each: amqp://user:password@a:5672,b:5672/vhost
// names two nodes of a cluster, which share all the rest. It reads no files. The error is a
// *retry.FieldError that shows no password.
func ParseURL(raw string) ([]string, error) {
	bad := func(allowed string) error { return retry.NewFieldError("amqp url", mask.URL(raw), allowed) }
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || scheme != "amqp" && scheme != "amqps" || strings.Contains(rest, "://") { // a list of hosts, not of URLs
		return nil, bad(Allowed)
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	user, hosts := "", rest[:end]
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		user, hosts = hosts[:i+1], hosts[i+1:]
	}
	seen := map[string]bool{}
	var list []string
	for host := range strings.SplitSeq(hosts, ",") {
		one := scheme + "://" + user + host + rest[end:]
		uri, err := amqp.ParseURI(one)
		if err != nil {
			// Not err's text: it holds pieces of the URL, and with them of the password.
			return nil, bad(Allowed)
		}
		if host == "" && hosts != "" {
			return nil, bad("a URL with a host on both sides of each comma")
		}
		address := fmt.Sprintf("%s:%d", uri.Host, uri.Port)
		if seen[address] {
			return nil, bad("a URL with each host once, not " + address + " twice")
		}
		seen[address] = true
		list = append(list, one)
	}
	return list, checkParameters(list[0], bad)
}

func checkParameters(one string, bad func(string) error) error {
	u, err := url.Parse(one)
	if err != nil {
		return bad(Allowed)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad(Allowed)
	}
	for name := range query {
		if !parameters[name] {
			return bad(fmt.Sprintf("a URL without %q: its parameters are %s", name, strings.Join(slices.Sorted(maps.Keys(parameters)), ", ")))
		}
	}
	for _, name := range query["auth_mechanism"] {
		if m := strings.ToLower(name); m != "plain" && m != "amqplain" && m != "external" {
			return bad(fmt.Sprintf("a URL with an auth_mechanism of plain, amqplain or external, not %q", name))
		}
	}
	cert, key := query.Get("certfile") != "", query.Get("keyfile") != ""
	switch {
	case cert != key:
		return bad("a URL with both of certfile and keyfile, or neither")
	case u.Scheme == "amqp" && (cert || query.Get("cacertfile") != "" || query.Get("server_name_indication") != ""):
		return bad("amqps:// where there are certificates")
	}
	return nil
}
