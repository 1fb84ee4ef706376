//go:build !linux

package main

import "syscall"

// dieWithParent: elsewhere the kernel offers no such thing.
func dieWithParent(*syscall.SysProcAttr) {}
