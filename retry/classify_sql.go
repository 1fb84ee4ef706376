package retry

import (
	"database/sql/driver"
	"strings"
)

// ClassifySQLState classes errors of Postgres by their SQLSTATE (appendix A of
// its manual). Any error with a method SQLState() string fits; both lib/pq and
// pgx have it. What is not known is ClassNone.
//
// The ground for "transient": an error of severity ERROR undoes the statement,
// and with it the transaction, so nothing took effect in the database. The
// exceptions are errors that can come instead of, or after, the answer to a
// COMMIT.
//
// driver.ErrBadConn is unknown. database/sql asks drivers to return it only if
// nothing was sent, but lib/pq returns it also for a connection that ended
// while it waited for an answer, a COMMIT's included.
func ClassifySQLState(err error) Class {
	return classTree(err, func(err error) Class {
		if isNode(err, driver.ErrBadConn) {
			return ClassUnknown
		}
		s, ok := err.(interface{ SQLState() string })
		if !ok {
			return ClassNone
		}
		code := s.SQLState()
		if code == "0A000" && strings.Contains(err.Error(), "cached plan must not change result type") {
			// Not a missing feature: a prepared statement met a table that a
			// migration changed. It was not run, and is prepared anew.
			return ClassTransient
		}
		return sqlStateClass(code)
	})
}

func sqlStateClass(code string) Class {
	if len(code) != 5 {
		return ClassNone
	}
	switch code {
	// Connections.
	case "08001", "08004":
		return ClassTransient // never established, or rejected: nothing was sent

	// Transactions that were rolled back for others' sake.
	case "40003":
		return ClassUnknown // statement_completion_unknown says so itself
	case "40002":
		return ClassPermanent // an integrity constraint, as class 23

	// Transactions that could not write, or not any more.
	case "25006":
		// read_only_sql_transaction: refused. After a failover one writes to
		// what is now a standby, until the address follows.
		return ClassTransient
	case "25P02":
		// in_failed_sql_transaction: an earlier statement failed and hid its
		// cause; all of the transaction is undone.
		return ClassTransient
	case "25P03", "25P04", "57P05":
		// idle and transaction timeouts: the session was ended before this
		// statement began, or its transaction was undone.
		return ClassTransient

	// Prepared statements that a pooler or a reconnect lost: not run.
	case "26000", "42P05":
		return ClassTransient

	// Operator intervention.
	case "57014":
		// query_canceled, also by statement_timeout: undone. A COMMIT that
		// waits for a standby is not ended by it: Postgres then only warns.
		return ClassTransient
	case "57P03":
		return ClassTransient // cannot_connect_now: starting up or shutting down
	case "57P01", "57P02":
		// admin_shutdown, crash_shutdown. Mostly a pooled connection that was
		// told to go before our statement; but the session can also be ended
		// between its commit and the end of its answer, and a driver that
		// reads both reports the error.
		return ClassUnknown

	case "72000":
		return ClassTransient // snapshot_too_old: a new transaction has a new one
	}

	switch code[:2] {
	case "08":
		// Lost (08000, 08003, 08006), transaction_resolution_unknown (08007)
		// or out of step (08P01, which poolers use for much): after sending,
		// for all we know.
		return ClassUnknown
	case "40":
		return ClassTransient // serialization_failure, deadlock_detected: undone, made to be repeated
	case "53":
		return ClassTransient // out of connections, memory or disk: undone, and relieved with time
	case "55":
		return ClassTransient // lock_not_available, object_in_use and kin: it depends on what others do
	case "0A", // feature not supported
		"0B", "0L", "0P", // transaction start, grantor, role
		"20", "21", // case not found, cardinality
		"22", // data exception: the arguments do not fit
		// integrity constraint. 23505 (unique_violation) in a repeat may mean
		// that an earlier attempt was done after all; the handler knows its
		// key and should say so, we cannot.
		"23",
		"24", "25", "2B", "2D", "2F", // cursor and transaction state: a programming error
		"28",       // authorization: the server's verdict on who we are
		"34", "38", // cursor name, external routine
		"39", "3B", // routine invocation, savepoint
		"3D", "3F", // no such database or schema
		"42", // syntax, access rules, undefined names
		"44", // WITH CHECK OPTION
		"54", // program limit: too complex stays too complex
		"P0": // raised by PL/pgSQL code: a rule of the application said no
		return ClassPermanent
	case "58", "XX":
		// A failed system call, a bug or corruption. Some of these are FATAL
		// or PANIC and can fall into a commit; a person should look.
		return ClassUnknown
	case "HV":
		// Foreign data wrappers commit on the other server before the local
		// commit, so a failure here may leave it done there.
		return ClassUnknown
	}
	return ClassNone
}
