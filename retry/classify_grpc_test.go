package retry_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spillway-mq/spillway/retry"
)

// grpcErr stands for gRPC's status error.
type grpcErr struct {
	code uint32
	text string
}

func (e grpcErr) Error() string { return e.text }

func grpcCode(err error) (uint32, bool) {
	e, ok := errors.AsType[grpcErr](err)
	return e.code, ok
}

func TestGRPCClass(t *testing.T) {
	const (
		none, perm = retry.ClassNone, retry.ClassPermanent
		tran, unkn = retry.ClassTransient, retry.ClassUnknown
	)
	for code, want := range []struct{ plain, idempotent retry.Class }{
		0:  {none, none}, // OK
		1:  {unkn, tran}, // CANCELLED
		2:  {unkn, tran}, // UNKNOWN
		3:  {perm, perm}, // INVALID_ARGUMENT
		4:  {unkn, tran}, // DEADLINE_EXCEEDED
		5:  {perm, perm}, // NOT_FOUND
		6:  {perm, perm}, // ALREADY_EXISTS
		7:  {perm, perm}, // PERMISSION_DENIED
		8:  {tran, tran}, // RESOURCE_EXHAUSTED
		9:  {perm, perm}, // FAILED_PRECONDITION
		10: {tran, tran}, // ABORTED
		11: {perm, perm}, // OUT_OF_RANGE
		12: {perm, perm}, // UNIMPLEMENTED
		13: {unkn, tran}, // INTERNAL
		14: {unkn, tran}, // UNAVAILABLE
		15: {perm, perm}, // DATA_LOSS
		16: {perm, perm}, // UNAUTHENTICATED
		17: {unkn, tran},
	} {
		if got := retry.GRPCClass(uint32(code), false); got != want.plain {
			t.Errorf("code %d: %q, want %q", code, got, want.plain)
		}
		if got := retry.GRPCClass(uint32(code), true); got != want.idempotent {
			t.Errorf("code %d, idempotent: %q, want %q", code, got, want.idempotent)
		}
		err := fmt.Errorf("call: %w", grpcErr{uint32(code), "x"})
		if got := retry.ClassifyGRPC(grpcCode, false)(err); got != want.plain {
			t.Errorf("code %d by error: %q, want %q", code, got, want.plain)
		}
	}
}

func TestClassifyGRPCMessageSize(t *testing.T) {
	err := grpcErr{8, "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (5 vs. 4)"}
	for _, idempotent := range []bool{false, true} {
		if got := retry.ClassifyGRPC(grpcCode, idempotent)(err); got != retry.ClassUnknown {
			t.Errorf("idempotent %v: %q, want unknown", idempotent, got)
		}
	}
}
