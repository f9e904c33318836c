//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/files"
	"agentvm/internal/guest/guestrpc"
)

// Boot is PID 1: it mounts the root, serves the host and never returns. When a necessary step fails, it writes one line to the
// console and powers the machine off.
//
//	initramfs: /dev /proc /sys ─► vda (EROFS) + vdb or tmpfs ─► overlay ─► switch root ─► read the shell ─► serve the control port
func Boot() {
	var u upper
	err := boot(&u)
	fatal(err, u)
}

// boot sets u as soon as there is a writable layer, so that a later failure can leave it clean.
func boot(u *upper) error {
	ignoreChildSignals()
	if err := mountFirst(); err != nil {
		return err
	}
	openConsole()
	options, err := readOptions("/proc/cmdline")
	if err != nil {
		return err
	}
	deferred, err := openOrigin(options)
	if err != nil {
		return err
	}
	if *u, err = mountRoot(options); err != nil {
		return err
	}
	if err := switchRoot(newRoot); err != nil {
		return err
	}
	if err := mountRest(); err != nil {
		return err
	}
	if err := configureSystem(options); err != nil {
		return err
	}
	preload(shellPath)
	if options.standalone {
		return standalone()
	}
	return serve(*u, deferred)
}

// consoleTime is how long the console's port may take to come.
const consoleTime = time.Second

// openConsole makes the console the standard streams of the supervisor, and so of all programs without streams of their own, if they are
// /dev/null: the kernel has started init before there was a console.
func openConsole() {
	var st unix.Stat_t
	if err := unix.Fstat(2, &st); err != nil || st.Rdev != unix.Mkdev(1, 3) {
		return
	}
	for end := time.Now().Add(consoleTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		for stream := range 3 {
			_ = unix.Dup3(fd, stream, 0)
		}
		_ = unix.Close(fd)
		return
	}
}

// serve answers the host until the machine is switched off.
func serve(u upper, deferred deferredRoot) error {
	port, err := openPort(controlPort)
	if err != nil {
		return err
	}
	s, err := New()
	if err != nil {
		return err
	}
	s.upper, s.deferred = u, deferred
	s.trimmer.Store(startTrimming(u))
	handleSignals(s.shutDown)
	if err := serveBulk(s); err != nil {
		return err
	}
	if err := guestrpc.Serve(context.Background(), port, s, nil); err != nil {
		return fmt.Errorf("control port: %w", err)
	}
	return errors.New("control port was closed")
}

// serveBulk starts a goroutine that serves the bulk port until the machine ends. It does nothing where there is no such port. When
// the port fails later, the VM continues without it.
func serveBulk(s *Supervisor) error {
	port, err := openPort(bulkPort)
	if errors.Is(err, errNoPort) {
		return nil
	}
	if err != nil {
		return err
	}
	service, err := files.New("/")
	if err != nil {
		return err
	}
	service.Torn = s.torn
	s.archive = service
	go func() { _ = guestrpc.ServeBulk(context.Background(), port, bulkFiles{service, s}, s, nil) }()
	return nil
}

// fatal powers the machine off. The host shows the user the console's last line, which is err.
func fatal(err error, u upper) {
	line := "agentvm-guest: fatal: " + err.Error() + "\n"
	if f, e := os.OpenFile("/dev/console", os.O_WRONLY|syscall.O_NOCTTY, 0); e == nil {
		_, _ = f.WriteString(line)
		_ = f.Close()
	} else {
		_, _ = os.Stderr.WriteString(line)
	}
	syncAndReboot(u, syscall.LINUX_REBOOT_CMD_POWER_OFF)
}
