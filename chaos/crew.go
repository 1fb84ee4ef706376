package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// crew is the processes under test. Each has a slot; a process that was killed is followed by one of the next generation.
type crew struct {
	command func(slot, name string) *exec.Cmd
	logs    string // a directory: a file for each process's stderr
	heard   func(name string, s said)
	ended   func(name string, err error) // a process that ended by itself

	mu    sync.Mutex
	slots map[string]*member
}

// member is the process that has a slot, or had it last.
type member struct {
	name       string
	generation int
	cmd        *exec.Cmd
	over       chan struct{} // closed when it has ended and its stdout is read
	err        error         // of its end; set before over is closed
	expected   bool          // we ended it; guarded by crew.mu
}

// start starts the next generation of a slot, unless its process runs.
func (c *crew) start(slot string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	generation := 1
	if old := c.slots[slot]; old != nil {
		select {
		case <-old.over:
		default:
			return nil
		}
		generation = old.generation + 1
	}
	m := &member{name: fmt.Sprintf("%s.%d", slot, generation), generation: generation, over: make(chan struct{})}
	m.cmd = c.command(slot, m.name)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(m.cmd.SysProcAttr)
	stderr, err := os.Create(filepath.Join(c.logs, m.name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = stderr.Close() }() // the child has its own
	m.cmd.Stderr = stderr
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", m.name, err)
	}
	if c.slots == nil {
		c.slots = map[string]*member{}
	}
	c.slots[slot] = m
	go func() { // ends with the process
		defer close(m.over)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s said
			if json.Unmarshal(lines.Bytes(), &s) == nil {
				c.heard(m.name, s)
			}
		}
		m.err = m.cmd.Wait()
		c.mu.Lock()
		expected := m.expected
		c.mu.Unlock()
		if !expected {
			c.ended(m.name, errors.Join(m.err, errors.New(c.tail(m.name))))
		}
	}()
	return nil
}

// tail returns the last lines that a process wrote to its log.
func (c *crew) tail(name string) string {
	b, err := os.ReadFile(filepath.Join(c.logs, name+".log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// kill ends a slot's process with SIGKILL and waits for it.
func (c *crew) kill(slot string) {
	c.mu.Lock()
	m := c.slots[slot]
	m.expected = true
	_ = m.cmd.Process.Kill()
	c.mu.Unlock()
	<-m.over
}

// signal sends a slot's process a signal. One that has ended meanwhile is none of its business.
func (c *crew) signal(slot string, s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.slots[slot].cmd.Process.Signal(s)
}

// stop ends the processes whose slots begin with role in good order. It returns what went wrong.
func (c *crew) stop(role string, patience time.Duration) []string {
	c.mu.Lock()
	var all []*member
	for slot, m := range c.slots {
		select {
		case <-m.over: // by a fault, or by itself: that was told
			continue
		default:
		}
		if strings.HasPrefix(slot, role) {
			m.expected = true
			_ = m.cmd.Process.Signal(syscall.SIGCONT)
			_ = m.cmd.Process.Signal(syscall.SIGTERM)
			all = append(all, m)
		}
	}
	c.mu.Unlock()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	var wrong []string
	for _, m := range all {
		select {
		case <-m.over:
		case <-deadline.C:
			deadline.Reset(0) // for the others
			_ = m.cmd.Process.Signal(syscall.SIGQUIT)
			wrong = append(wrong, fmt.Sprintf("%s did not stop within %v; its log has the goroutines", m.name, patience))
			<-m.over
			continue
		}
		if m.err != nil {
			wrong = append(wrong, fmt.Sprintf("%s stopped with %v:\n%s", m.name, m.err, c.tail(m.name)))
		}
	}
	return wrong
}
