package persistence_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/spillway-mq/spillway/persistence/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPostgres(t *testing.T) { storetest.Run(t, storetest.Postgres) }
