package testenv

import "testing"

func TestServer(t *testing.T) {
	s := NewServer(t, ServerConfig{Conf: "heartbeat = 7\n", Plugins: []string{"rabbitmq_auth_mechanism_ssl"}})
	conn, err := dial(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got := conn.Config.Heartbeat.Seconds(); got != 7 {
		t.Errorf("heartbeat %v: its own configuration does not count", got)
	}
	s.Kill()
	if c, err := dial(s.URL); err == nil {
		_ = c.Close()
		t.Error("it answers after it was killed")
	}
	s.Start()
	again, err := dial(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
