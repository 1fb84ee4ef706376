// Package retryhttp keeps retries from multiplying across services that call each other
// by HTTP. Three layers that each try three times would send 27 calls down; with it they
// send 3, because only the outermost tries again.
//
//   - Transport, on the client's side, tells the other service in headers that a request
//     is part of an attempt, and how much time is left. It does not send what is too
//     late.
//   - Handler, on the server's side, puts that into the request's context, where
//     publisher.Do and the next Transport find it. It does not begin what is too late.
//   - Error makes the attempt's error of a response, with its class and Retry-After.
//
// The headers:
//
//	Spillway-Attempt   the attempt's number; 0 in a call of Do or Record. Its presence says
//	                   that somebody above tries again, and without it the others say nothing
//	Spillway-Task-Id   the task's number
//	Spillway-Service, Spillway-Scene, Spillway-Key
//	                   the task's names. In the key, what is not printable ASCII, spaces
//	                   and % are percent-encoded
//	Spillway-Time-Left whole milliseconds until the task's deadline, after which
//	                   nothing begins; what has begun may go on
//	Spillway-Timeout   whole milliseconds until the caller stops waiting (its context's
//	                   deadline)
//	Idempotency-Key    service/scene/key, encoded as the key, where asked for
//
// Times travel as durations, since two machines' clocks differ; the way of the request is
// not counted.
//
// A layer between that does not use this package has to pass on the headers that begin with
// Spillway-, as proxies do by themselves. Where it drops them, the layers below it do not know
// of those above, and try again as if they were outermost: more calls, but nothing is lost.
package retryhttp
