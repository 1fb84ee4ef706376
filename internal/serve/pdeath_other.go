//go:build !linux

package serve

import "syscall"

// dieWithParent does nothing where the kernel offers nothing for it.
func dieWithParent(*syscall.SysProcAttr) {}
