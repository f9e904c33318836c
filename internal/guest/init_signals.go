//go:build linux

package guest

import (
	"os"
	"os/signal"
	"syscall"
)

// endSignals are signals by which programs ask PID 1 for the machine's end. reboot, poweroff and halt of BusyBox send the first three; the kernel
// sends SIGINT for Ctrl-Alt-Del; systemd's PID 1 takes the numbered ones, which are glibc's SIGRTMIN+3 to +5 and +13 to +15, from
// container managers.
var endSignals = map[syscall.Signal]int{
	syscall.SIGTERM: syscall.LINUX_REBOOT_CMD_RESTART,
	syscall.SIGUSR2: syscall.LINUX_REBOOT_CMD_POWER_OFF,
	syscall.SIGUSR1: syscall.LINUX_REBOOT_CMD_POWER_OFF, // halt: a halted VM would only wait to be killed
	syscall.SIGINT:  syscall.LINUX_REBOOT_CMD_RESTART,

	37: syscall.LINUX_REBOOT_CMD_POWER_OFF, 47: syscall.LINUX_REBOOT_CMD_POWER_OFF, // halt
	38: syscall.LINUX_REBOOT_CMD_POWER_OFF, 48: syscall.LINUX_REBOOT_CMD_POWER_OFF,
	39: syscall.LINUX_REBOOT_CMD_RESTART, 49: syscall.LINUX_REBOOT_CMD_RESTART,
}

// droppedSignals would end a Go program, and have no meaning for this one. The kernel protects PID 1 only from signals without a handler,
// and Go's runtime installs one for each.
var droppedSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV,
	syscall.SIGSTKFLT, syscall.SIGSYS,
}

// handleSignals calls end when one of endSignals arrives. It is called before the first other process could send one.
func handleSignals(end func(command int)) {
	signal.Notify(make(chan os.Signal, 1), droppedSignals...) // no goroutine reads them, and Notify drops what does not fit
	handleReserved(32, 34)
	orders := make(chan os.Signal, len(endSignals))
	for s := range endSignals {
		signal.Notify(orders, s)
	}
	// Ctrl-Alt-Del becomes SIGINT instead of a reset at once. There is no keyboard, but a program can ask for it.
	_ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_CAD_OFF)
	go func() {
		first, _ := (<-orders).(syscall.Signal)
		end(endSignals[first])
	}()
}
