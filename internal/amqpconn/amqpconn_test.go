package amqpconn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/internal/amqpconn"
	"github.com/spillway-mq/spillway/internal/testenv"
	"github.com/spillway-mq/spillway/retry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open starts a Conn that is closed when the test ends.
func open(t *testing.T, cfg amqpconn.Config) *amqpconn.Conn {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = testenv.Service(t)
	}
	cfg.Logger = testenv.Logger(t)
	c, err := amqpconn.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, c, 10*time.Second, 10*time.Second) })
	return c
}

// closeWithin closes with a context of its own and says if it took longer than max.
func closeWithin(t *testing.T, c *amqpconn.Conn, limit, most time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begin := time.Now()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > most {
		t.Errorf("closing took %v", took)
	}
}

func session(t *testing.T, c *amqpconn.Conn) *amqpconn.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// works publishes a message and sees it confirmed.
func works(t *testing.T, s *amqpconn.Session) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ch, err := s.OpenChannel(ctx, func(ch *amqp.Channel) error { return ch.Confirm(false) })
	if err != nil {
		t.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirm("", "amqpconn-nowhere", false, false, amqp.Publishing{Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := confirm.WaitContext(ctx); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := ch.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestConnectsAndCloses(t *testing.T) {
	c := open(t, amqpconn.Config{URL: testenv.AMQPURL(t)})
	s := session(t, c)
	works(t, s)
	if st := c.State(); !st.Connected || st.Generation != 1 || s.Generation != 1 || st.LastError != nil || c.Live() != s {
		t.Errorf("%+v", st)
	}
	closeWithin(t, c, 5*time.Second, 3*time.Second)
	testenv.Closed(t, time.Second, "the session ends", s.Done())
	if !errors.Is(s.Err(), amqpconn.ErrClosed) {
		t.Error(s.Err())
	}
	if _, err := c.Session(t.Context()); !errors.Is(err, amqpconn.ErrClosed) {
		t.Error(err)
	}
	if _, err := s.OpenChannel(t.Context(), nil); err == nil {
		t.Error("a channel of a closed session")
	}
}

func TestComesBackAfterACut(t *testing.T) {
	p := testenv.NewProxy(t, testenv.AMQPURL(t))
	c := open(t, amqpconn.Config{URL: p.URL(testenv.AMQPURL(t))})
	first := session(t, c)
	p.Cut()
	testenv.Closed(t, 5*time.Second, "the cut is noticed", first.Done())
	if first.Err() == nil || errors.Is(first.Err(), amqpconn.ErrClosed) {
		t.Error(first.Err())
	}
	second := session(t, c)
	works(t, second)
	if second.Generation != 2 {
		t.Errorf("generation %d", second.Generation)
	}
	p.Refuse()
	p.Cut()
	testenv.Eventually(t, 10*time.Second, func() bool { return c.State().Failures >= 3 }, "dials fail")
	if st := c.State(); st.Connected || st.LastError == nil || st.Permanent {
		t.Errorf("%+v", st)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Session(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	p.Accept()
	works(t, session(t, c))
}

// A peer that neither answers nor hangs up.
func TestFrozen(t *testing.T) {
	p := testenv.NewProxy(t, testenv.AMQPURL(t))
	c := open(t, amqpconn.Config{URL: p.URL(testenv.AMQPURL(t)), Heartbeat: time.Second, DialTimeout: 500 * time.Millisecond})
	first := session(t, c)
	p.Freeze()
	begin := time.Now()
	testenv.Closed(t, 10*time.Second, "the silence is noticed", first.Done())
	if took := time.Since(begin); took > 4*time.Second || !strings.Contains(first.Err().Error(), "no byte from the broker for 1.5s") {
		t.Error(took, first.Err())
	}
	// The port answers, but the handshake does not.
	testenv.Eventually(t, 10*time.Second, func() bool { return c.State().Failures >= 2 }, "dials fail")
	if err := c.State().LastError; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "handshake") {
		t.Error(err)
	}
	p.Thaw()
	works(t, session(t, c))
	// Only the way back is frozen: what we send arrives, nothing comes.
	p.FreezeReplies()
	testenv.Closed(t, 10*time.Second, "the silence is noticed", c.Live().Done())
	p.Freeze()
	closeWithin(t, c, 100*time.Millisecond, 3*time.Second)
}

func TestCloseWhileFrozen(t *testing.T) {
	for name, limit := range map[string]time.Duration{"no time": 0, "some time": 300 * time.Millisecond, "enough": time.Minute} {
		t.Run(name, func(t *testing.T) {
			p := testenv.NewProxy(t, testenv.AMQPURL(t))
			c := open(t, amqpconn.Config{URL: p.URL(testenv.AMQPURL(t))})
			s := session(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			ch, err := s.OpenChannel(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			p.Freeze()
			// Somebody hangs in the socket, as publishers do when the broker does not
			// read. It holds the library's locks.
			var wg sync.WaitGroup
			defer wg.Wait()
			stuck := make(chan struct{})
			wg.Go(func() {
				defer close(stuck)
				for body := make([]byte, 1<<20); ; {
					if ch.Publish("", "amqpconn-nowhere", false, false, amqp.Publishing{Body: body}) != nil {
						return
					}
				}
			})
			closeWithin(t, c, limit, 4*time.Second)
			testenv.Closed(t, 5*time.Second, "the publisher is free", stuck)
		})
	}
}

// The library has no write deadline; without ours the publisher would hang until
// the heartbeat's end, and for ever where heartbeats still come.
func TestWritesHaveADeadline(t *testing.T) {
	server := broker(t) // answers with heartbeats and reads nothing after the handshake
	c := open(t, amqpconn.Config{URL: server, WriteTimeout: 300 * time.Millisecond, Heartbeat: 30 * time.Second})
	s := session(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ch, err := s.OpenChannel(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for body := make([]byte, 1<<20); err == nil; {
		begin := time.Now()
		err = ch.Publish("", "q", false, false, amqp.Publishing{Body: body})
		if took := time.Since(begin); took > 5*time.Second {
			t.Fatalf("a publish took %v", took)
		}
	}
	testenv.Closed(t, 5*time.Second, "the connection is given up", s.Done())
	if !strings.Contains(s.Err().Error(), "the broker did not read for 300ms") {
		t.Error(err, s.Err())
	}
}

// broker passes the handshake on to the real broker and then stops reading, while
// heartbeats still come: as the broker does with publishers under an alarm.
func broker(t *testing.T) string {
	p := testenv.NewProxy(t, testenv.AMQPURL(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	over := make(chan struct{})
	t.Cleanup(func() { close(over); _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", p.Addr())
			if err != nil {
				_ = down.Close()
				continue
			}
			wg.Go(func() { _, _ = io.Copy(down, up); _ = down.Close() })
			wg.Go(func() {
				defer up.Close()
				_, _ = io.CopyN(up, down, 600) // about where the first message begins
				<-over
			})
		}
	})
	u, err := url.Parse(testenv.AMQPURL(t))
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.Addr().String()
	return u.String()
}

func TestForcedCloseByThePerson(t *testing.T) {
	c := open(t, amqpconn.Config{URL: testenv.AMQPURL(t), Name: "spillway " + testenv.Service(t) + " test"})
	first := session(t, c)
	name, _ := first.Config.Properties["connection_name"].(string)
	testenv.Eventually(t, 30*time.Second, func() bool { return testenv.CloseConnections(t, name) == 1 }, "the management UI shows the name "+name)
	testenv.Closed(t, 10*time.Second, "the session ends", first.Done())
	var ae *amqp.Error
	if !errors.As(first.Err(), &ae) || ae.Code != amqp.ConnectionForced || !strings.Contains(first.Err().Error(), "closed by the broker: 320") {
		t.Error(first.Err())
	}
	works(t, session(t, c))
}

func TestKill(t *testing.T) {
	c := open(t, amqpconn.Config{URL: testenv.AMQPURL(t)})
	first := session(t, c)
	why := errors.New("it does not answer")
	first.Kill(why)
	first.Kill(errors.New("another reason"))
	testenv.Closed(t, 5*time.Second, "the session ends", first.Done())
	if !errors.Is(first.Err(), why) {
		t.Error(first.Err())
	}
	works(t, session(t, c))
}

func TestRefusals(t *testing.T) {
	good := testenv.AMQPURL(t)
	change := func(f func(*url.URL)) string {
		u, err := url.Parse(good)
		if err != nil {
			t.Fatal(err)
		}
		f(u)
		return u.String()
	}
	for name, test := range map[string]struct {
		url       string
		permanent bool
		says      string
	}{
		"password": {change(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "hunter2") }), true, "check user and password"},
		"user":     {change(func(u *url.URL) { u.User = url.UserPassword("nobody", "hunter2") }), true, "check user and password"},
		"vhost":    {change(func(u *url.URL) { u.Path = "/no-such-vhost" }), true, "check the vhost"},
		"tls":      {change(func(u *url.URL) { u.Scheme = "amqps" }), true, "does not speak TLS"},
		"port":     {change(func(u *url.URL) { u.User, u.Host = url.UserPassword("u", "hunter2"), "127.0.0.1:1" }), false, "connection refused"},
		"host":     {change(func(u *url.URL) { u.User, u.Host = url.UserPassword("u", "hunter2"), "no-such-host.invalid:5672" }), false, "no-such-host.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, amqpconn.Config{URL: test.url})
			testenv.Eventually(t, 30*time.Second, func() bool { return c.State().LastError != nil }, "the dial fails")
			st := c.State()
			if st.Permanent != test.permanent || !strings.Contains(st.LastError.Error(), test.says) || strings.Contains(st.LastError.Error(), "hunter2") {
				t.Errorf("permanent %v: %v", st.Permanent, st.LastError)
			}
			if st.Connected || c.Live() != nil {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestBadConfig(t *testing.T) {
	for name, cfg := range map[string]amqpconn.Config{
		"nothing":          {},
		"scheme":           {URL: "http://u:hunter2@h/"},
		"port":             {URL: "amqp://u:hunter2@h:port/"},
		"space":            {URL: "amqp://u:hunter2@h /"},
		"not encoded":      {URL: "amqp://u:hun/ter2#@h:5672/"},
		"heartbeat":        {URL: "amqp://u:hunter2@h/", Heartbeat: 10 * time.Millisecond},
		"negative":         {URL: "amqp://u:hunter2@h/", DialTimeout: -1},
		"backoff reversed": {URL: "amqp://u:hunter2@h/", MinBackoff: time.Minute, MaxBackoff: time.Second},
	} {
		c, err := amqpconn.New(cfg)
		var fe *retry.FieldError
		if !errors.As(err, &fe) || !strings.HasPrefix(fe.Field, "amqp ") || strings.Contains(err.Error(), "hun") {
			t.Errorf("%s: %v", name, err)
		}
		if c != nil {
			closeWithin(t, c, time.Second, 5*time.Second)
		}
	}
}

// Many wait for the same connection, some of them in vain.
func TestConcurrentUse(t *testing.T) {
	p := testenv.NewProxy(t, testenv.AMQPURL(t))
	p.Refuse()
	c := open(t, amqpconn.Config{URL: p.URL(testenv.AMQPURL(t))})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if i%4 == 0 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if _, err := c.Session(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			s, err := c.Session(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.OpenChannel(ctx, nil); err != nil {
				t.Error(err)
			}
			_ = c.State()
		})
	}
	testenv.Eventually(t, 10*time.Second, func() bool { return c.State().Failures > 0 }, "a dial fails")
	p.Accept()
	wg.Wait()
}
