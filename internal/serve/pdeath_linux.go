package serve

import "syscall"

// dieWithParent lets the kernel end a command whose consumer was killed: the task's next attempt must not run beside it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
