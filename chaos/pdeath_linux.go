package main

import "syscall"

// dieWithParent lets the kernel end a process whose harness was killed: one that is stopped would stay for ever.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
