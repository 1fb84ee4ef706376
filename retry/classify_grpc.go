package retry

import "strings"

// gRPC status codes by number, as in the protocol; so nobody has to import gRPC
// for this package.
const (
	grpcOK                 = 0
	grpcCanceled           = 1
	grpcUnknown            = 2
	grpcInvalidArgument    = 3
	grpcDeadlineExceeded   = 4
	grpcNotFound           = 5
	grpcAlreadyExists      = 6
	grpcPermissionDenied   = 7
	grpcResourceExhausted  = 8
	grpcFailedPrecondition = 9
	grpcAborted            = 10
	grpcOutOfRange         = 11
	grpcUnimplemented      = 12
	grpcInternal           = 13
	grpcUnavailable        = 14
	grpcDataLoss           = 15
	grpcUnauthenticated    = 16
)

// ClassifyGRPC makes a Classifier from a function that finds the status code
// in an error, and false if it holds none:
//
//	retry.ClassifyGRPC(func(err error) (uint32, bool) {
//		s, ok := status.FromError(err)
//		return uint32(s.Code()), ok
//	}, false)
//
// idempotent says that the method may be repeated safely; see GRPCClass. A nil
// code gives a Classifier that knows nothing.
func ClassifyGRPC(code func(err error) (uint32, bool), idempotent bool) Classifier {
	return func(err error) Class {
		if err == nil || code == nil {
			return ClassNone
		}
		c, ok := code(err)
		if !ok {
			return ClassNone
		}
		if c == grpcResourceExhausted && strings.Contains(err.Error(), "message larger than max") {
			// gRPC's limit on message size uses the code of quotas. It may be
			// the request that was refused or the answer to a call that was
			// done; the texts are the same.
			return ClassUnknown
		}
		return GRPCClass(c, idempotent)
	}
}

// GRPCClass says what a gRPC status code means for a repeat of the call. OK is
// ClassNone; a code above 16 counts as UNKNOWN, as gRPC asks. idempotent says
// that repeating is safe: what may have taken effect is then transient.
func GRPCClass(code uint32, idempotent bool) Class {
	switch code {
	case grpcOK:
		return ClassNone

	case grpcResourceExhausted:
		return ClassTransient // refused by a quota or limiter
	case grpcAborted:
		return ClassTransient // a conflict of transactions; this one was undone

	case grpcInvalidArgument, grpcNotFound, grpcAlreadyExists, grpcFailedPrecondition,
		grpcOutOfRange, grpcUnimplemented:
		// The server judged this call and refused it. FAILED_PRECONDITION is
		// by its definition not to be repeated before the state was mended;
		// what may be repeated is ABORTED or UNAVAILABLE.
		return ClassPermanent
	case grpcPermissionDenied, grpcUnauthenticated:
		return ClassPermanent // a verdict too, on who we are
	case grpcDataLoss:
		return ClassPermanent // unrecoverable by definition

	case grpcUnavailable:
		// Mostly a refused call or a failed dial, and gRPC's own advice is to
		// repeat it; but a connection that was lost in the middle of a call
		// gives the same code. The text is no proof either: a server that
		// passes on the error of its own downstream passes on "error while
		// dialing", after having done who knows what.
	case grpcCanceled, grpcDeadlineExceeded:
		// We stopped waiting (or a proxy did); the server may have finished.
	case grpcUnknown, grpcInternal:
		// An error or panic somewhere in the server's work, or a broken stream.
	default:
		// A code that gRPC does not define.
	}
	if idempotent {
		return ClassTransient
	}
	return ClassUnknown
}
