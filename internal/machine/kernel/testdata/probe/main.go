//go:build linux && (riscv64 || arm64)

// Probe is the only program of boot_test.go's initramfs: as PID 1 it tries what the kernel promises, prints a line for
// each promise and ends the machine in the way the command line asks for (probe=poweroff, reboot, panic or cost).
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// check is one promise: run returns what was seen, or why it does not hold.
type check struct {
	name string
	run  func() (string, error)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		os.Exit(namespaceChild())
	}
	started := instructions()
	if err := mountKernelFiles(); err != nil {
		fmt.Println("probe: mount:", err)
	}
	switch mode() {
	case "cost":
		fmt.Println("probe: instructions", started)
		end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	case "reboot":
		end(unix.LINUX_REBOOT_CMD_RESTART)
	case "panic":
		fmt.Println("probe: panic", os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
	default:
		report(checks)
		end(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
}

func report(checks []check) {
	for _, c := range checks {
		if seen, err := c.run(); err != nil {
			fmt.Printf("probe: FAIL %s: %v\n", c.name, err)
		} else {
			fmt.Printf("probe: ok %s %s\n", c.name, seen)
		}
	}
	fmt.Println("probe: done")
}

// mode is the value of probe= on the kernel's command line.
func mode() string {
	line, _ := os.ReadFile("/proc/cmdline")
	for _, word := range strings.Fields(string(line)) {
		if value, found := strings.CutPrefix(word, "probe="); found {
			return value
		}
	}
	return "poweroff"
}

func end(how int) {
	if err := unix.Reboot(how); err != nil {
		fmt.Println("probe: reboot:", err)
	}
}

func mountKernelFiles() error {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := mount(m.kind, m.at, ""); err != nil {
			return err
		}
	}
	return nil
}

func mount(kind, at, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(kind, at, kind, 0, options); err != nil {
		return fmt.Errorf("mount -t %s %s: %w", kind, at, err)
	}
	return nil
}

// instructions is what the processor has executed since reset. On arm64 it is the counter of time, of which one tick is 16 instructions with
// QEMU's -icount shift=0.
func instructions() uint64
