package testenv

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Server is a RabbitMQ of the test's own, which may be stopped, killed and alarmed. It is made
// by scripts/services from the same packages as the shared one, and is gone when the test ends.
type Server struct {
	// URL and ManagementURL have the user and the password of its administrator.
	URL, ManagementURL string

	t   testing.TB
	dsn string // of the shared Postgres, or scripts/services would start one
	dir string // of its copy of scripts/services, which keeps data and ports there
}

// ServerConfig of a Server.
type ServerConfig struct {
	// Conf is added to its rabbitmq.conf.
	Conf string
	// Plugins are enabled as well.
	Plugins []string
}

// NewServer starts a Server; that takes some seconds. Where RabbitMQ's packages are neither
// installed nor can be, the test is skipped: it runs against servers of somebody else's then.
func NewServer(t testing.TB, cfg ServerConfig) *Server {
	t.Helper()
	dsn := PostgresDSN(t)
	_, file, _, _ := runtime.Caller(0)
	script, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../scripts/services"))
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir, which the server's own user cannot enter.
	dir, err := os.MkdirTemp("/var/tmp", "spillway-test-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dsn: dsn, dir: dir}
	t.Cleanup(func() {
		if out, err := s.services("down", "--purge"); err != nil {
			t.Errorf("stop the test's own broker: %v\n%s", err, out)
		}
		_ = os.RemoveAll(dir)
	})
	for name, text := range map[string]string{
		"scripts/services": string(script), ".services/rabbitmq.conf": cfg.Conf, ".services/rabbitmq.plugins": strings.Join(cfg.Plugins, ","),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := s.services("up", "--with", "packages"); err != nil {
		if strings.Contains(out, "missing: ") || strings.Contains(out, "missing packages: ") {
			t.Skipf("it needs a broker of its own: %s", out)
		}
		t.Fatalf("start a broker of the test's own: %v\n%s", err, out)
	}
	out, err := s.services("env")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, value := range map[string]*string{"SPILLWAY_AMQP_URL": &s.URL, "SPILLWAY_MANAGEMENT_URL": &s.ManagementURL} {
		m := regexp.MustCompile(name + `='([^']*)'`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("%s is not in:\n%s", name, out)
		}
		*value = m[1]
	}
	return s
}

// services runs the copy of scripts/services.
func (s *Server) services(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // t's context is over in a cleanup
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{filepath.Join(s.dir, "scripts/services")}, args...)...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SPILLWAY_AMQP_URL=") && !strings.HasPrefix(kv, "SPILLWAY_MANAGEMENT_URL=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "SPILLWAY_POSTGRES_DSN="+s.dsn)
	cmd.WaitDelay = time.Second // the server inherits the pipe
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *Server) do(args ...string) {
	s.t.Helper()
	if out, err := s.services(args...); err != nil {
		s.t.Fatalf("scripts/services %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Use makes it the server of AMQPURL and ManagementURL until t ends. The test cannot be parallel.
func (s *Server) Use(t testing.TB) {
	t.Setenv("SPILLWAY_AMQP_URL", s.URL)
	t.Setenv("SPILLWAY_MANAGEMENT_URL", s.ManagementURL)
}

// Stop ends the server in good order. Start starts it again, with its data.
func (s *Server) Stop() { s.t.Helper(); s.do("stop", "rabbitmq") }

// Kill ends the server with SIGKILL.
func (s *Server) Kill() { s.t.Helper(); s.do("kill", "rabbitmq") }

// Start starts the server after Stop or Kill.
func (s *Server) Start() { s.t.Helper(); s.do("start", "rabbitmq") }

// Ctl runs rabbitmqctl.
func (s *Server) Ctl(args ...string) {
	s.t.Helper()
	s.do(append([]string{"ctl"}, args...)...)
}

// Resource is what an alarm is about.
type Resource string

// The resources, in Alarm and as the broker names them to clients.
const (
	Memory Resource = "memory"
	Disk   Resource = "disk"
)

// Alarm turns an alarm on or off. In alarm the broker takes no messages and does not read what
// publishers send.
func (s *Server) Alarm(r Resource, on bool) {
	s.t.Helper()
	switch {
	case r == Memory && on:
		s.Ctl("set_vm_memory_high_watermark", "0")
	case r == Memory:
		s.Ctl("set_vm_memory_high_watermark", "0.4")
	case on:
		s.Ctl("set_disk_free_limit", "1000000GB")
	default:
		s.Ctl("set_disk_free_limit", "50MB")
	}
}

// FreePort returns a port on loopback that nobody listens on, below those that the kernel hands
// out by itself.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port := 10000 + rand.N(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}
