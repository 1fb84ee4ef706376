package retry_test

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/spillway-mq/spillway/retry"
)

// sqlErr stands for any driver's error (pgx's has this method too).
type sqlErr struct{ code, text string }

func (e sqlErr) Error() string    { return e.text }
func (e sqlErr) SQLState() string { return e.code }

func TestClassifySQLState(t *testing.T) {
	for class, codes := range map[retry.Class][]string{
		retry.ClassTransient: {
			"08001", "08004", "40000", "40001", "40P01", "25006", "25P02", "25P03", "25P04", "26000", "42P05",
			"53000", "53100", "53200", "53300", "53400", "55000", "55006", "55P03", "57014", "57P03", "57P05", "72000",
		},
		retry.ClassUnknown: {
			"08000", "08003", "08006", "08007", "08P01", "40003", "57P01", "57P02", "58000", "58030", "XX000", "XX001", "XX002", "HV000",
		},
		retry.ClassPermanent: {
			"0A000", "22001", "22P02", "23502", "23503", "23505", "23514", "23P01", "25001", "28000", "28P01",
			"3D000", "3F000", "40002", "42501", "42601", "42703", "42P01", "44000", "54000", "P0001",
		},
		retry.ClassNone: {"", "00000", "01000", "02000", "4000", "400010", "57000", "57P04", "99999", "éé0"},
	} {
		for _, code := range codes {
			var err error = &pq.Error{Code: pqerror.Code(code), Message: "m"}
			if got := retry.ClassifySQLState(err); got != class {
				t.Errorf("%s of lib/pq: %q, want %q", code, got, class)
			}
			err = fmt.Errorf("finish: %w", sqlErr{code, "m"})
			if got := retry.ClassifySQLState(err); got != class {
				t.Errorf("%s wrapped: %q, want %q", code, got, class)
			}
		}
	}
	for _, tc := range []struct {
		name string
		err  error
		want retry.Class
	}{
		{"plan after a migration", sqlErr{"0A000", "ERROR: cached plan must not change result type (SQLSTATE 0A000)"}, retry.ClassTransient},
		{"lib/pq's bad connection may be a commit", fmt.Errorf("commit: %w", driver.ErrBadConn), retry.ClassUnknown},
		{"joined, the strictest", errors.Join(sqlErr{"40001", "a"}, sqlErr{"08006", "b"}), retry.ClassUnknown},
	} {
		if got := retry.ClassifySQLState(tc.err); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
