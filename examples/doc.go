// Package examples holds small programs to start from. publish and consume are the README's quickstart in Go, serve is
// its quickstart for other languages, and submit hands tasks over from these. The tests here run them on real servers and keep the README in step with them.
package examples
