package main

import (
	"os"
	"testing"
)

// With Postgres down before the command begins, the submit queue takes the task.
func TestPublishWhilePostgresIsAway(t *testing.T) {
	servers(t)
	run(t, "topology", "declare").want(t, exitOK)
	t.Setenv(varDSN, with(t, os.Getenv(varDSN), freePort(t), ""))
	run(t, "publish", "--scene", "mail.send").want(t, exitOK, "the task is in the submit queue")
	t.Setenv(varAMQP, with(t, os.Getenv(varAMQP), freePort(t), ""))
	run(t, "publish", "--scene", "mail.send").want(t, exitUnreachable, "postgres", "submit queue")
}
