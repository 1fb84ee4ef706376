package testenv

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServiceNames(t *testing.T) {
	t.Run("Long Name, with_Odd/characters/"+strings.Repeat("x", 100), func(t *testing.T) {
		a, b := Service(t), Service(t)
		if a == b {
			t.Errorf("twice %s", a)
		}
	})
}

func TestDeclareTopology(t *testing.T) {
	service := Service(t)
	t.Run("declared", func(t *testing.T) {
		cfg := DeclareTopology(t, service, topology.Classic)
		if n, err := topology.Depth(t.Context(), AMQP(t), cfg.Names().Ready()); n != 0 || err != nil {
			t.Errorf("depth %d, %v", n, err)
		}
	})
	_, err := topology.Depth(t.Context(), AMQP(t), topology.NamesOf(service).Ready())
	if !errors.Is(err, topology.ErrMissing) {
		t.Errorf("after the test: %v", err)
	}
}

func TestLoggerAfterTheEnd(t *testing.T) {
	var log = func() {}
	t.Run("inner", func(t *testing.T) {
		l := Logger(t)
		l.Info("seen")
		log = func() { l.Info("dropped") }
	})
	log()
}

// echo is a server that sends back each line.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

type client struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func connect(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, t, bufio.NewReader(c)}
}

func (c *client) say(text string, within time.Duration) (string, error) {
	if _, err := io.WriteString(c, text+"\n"); err != nil {
		return "", err
	}
	return c.hear(within)
}

func (c *client) hear(within time.Duration) (string, error) {
	_ = c.SetReadDeadline(time.Now().Add(within))
	line, err := c.r.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (c *client) expect(text string) {
	c.t.Helper()
	if got, err := c.say(text, 5*time.Second); got != text || err != nil {
		c.t.Fatalf("%q, %v, want %q", got, err, text)
	}
}

func TestProxy(t *testing.T) {
	target := echo(t)
	p := NewProxy(t, "tcp://user:pw@"+target)
	if got := p.URL("amqp://u:p@h:1/v"); got != "amqp://u:p@"+p.Addr()+"/v" {
		t.Error(got)
	}
	a := connect(t, p.Addr())
	a.expect("one")

	for _, freeze := range []func(){p.Freeze, p.FreezeReplies} {
		freeze()
		freeze()
		if got, err := a.say("late", 50*time.Millisecond); err == nil {
			t.Fatalf("frozen, and got %q", got)
		}
		b := connect(t, p.Addr())
		if got, err := b.say("late", 50*time.Millisecond); err == nil {
			t.Fatalf("frozen, and got %q", got)
		}
		p.Thaw()
		for _, c := range []*client{a, b} {
			if got, err := c.hear(5 * time.Second); got != "late" || err != nil {
				t.Fatalf("after thawing: %q, %v", got, err)
			}
			c.expect("two")
		}
	}

	p.Refuse()
	a.expect("open ones stay")
	if _, err := net.DialTimeout("tcp", p.Addr(), 5*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("refused: %v", err)
	}
	p.Cut()
	if got, err := a.say("cut", 5*time.Second); err == nil || errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("cut: %q, %v", got, err)
	}
	p.Accept()
	p.Accept()
	connect(t, p.Addr()).expect("three")

	// Nothing may hang at the end.
	p.Freeze()
	_, _ = connect(t, p.Addr()).say("never", time.Millisecond)
}
