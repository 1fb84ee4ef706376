package amqpconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Dial connects once, to the first address that answers, for callers that need no
// supervisor. The caller closes the connection. The error is a *retry.FieldError or holds
// the *DialError of each address.
func Dial(ctx context.Context, cfg Config) (*amqp.Connection, error) {
	addresses, uri, err := cfg.check()
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(uri)
	var errs []error
	for _, address := range addresses {
		conn, _, err := cfg.dial(ctx, address)
		if err == nil {
			return conn, nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// dial connects once to an address.
func (c Config) dial(ctx context.Context, url string) (*amqp.Connection, *wire, *DialError) {
	ctx, cancel := context.WithTimeout(ctx, c.DialTimeout)
	defer cancel()
	var w *wire
	unbind := func() bool { return true }
	props := amqp.NewConnectionProperties()
	props["product"] = "spillway"
	props.SetClientConnectionName(c.Name)
	uri, err := amqp.ParseURI(url)
	var secure *tls.Config
	if err == nil {
		secure, err = tlsConfig(uri, c.TLS)
	}
	if err != nil {
		return nil, nil, explain(ctx, url, c.DialTimeout, nil, err)
	}
	conn, err := amqp.DialConfig(url, amqp.Config{
		Heartbeat: c.Heartbeat, Properties: props, TLSClientConfig: secure,
		Dial: func(network, addr string) (net.Conn, error) {
			d := net.Dialer{KeepAlive: keepAlive}
			nc, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			w = &wire{Conn: nc, writeTimeout: c.WriteTimeout}
			// A listener that says nothing, or half of what it should, ends here.
			unbind = context.AfterFunc(ctx, func() { _ = nc.Close() })
			return w, nil
		},
	})
	if !unbind() && err == nil { // too late by a hair: the socket is closed
		err = ctx.Err()
	}
	if err != nil {
		if w != nil {
			_ = w.Close() // the library leaves it open after some failures
		}
		return nil, nil, explain(ctx, url, c.DialTimeout, w, err)
	}
	// What was agreed on, which may be less than we asked for. As in the library:
	// the broker sends every half heartbeat, so this is three missing in a row.
	w.setSilence(conn.Config.Heartbeat * 3 / 2)
	return conn, w, nil
}
