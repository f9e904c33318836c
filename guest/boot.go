//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"agentvm/guest/files"
	"agentvm/rpc"
)

// Boot is the whole life of PID 1: it mounts the root, serves the host and never returns. What it cannot do without is
// reported in one line on the console, and then the machine powers off.
//
//	initramfs: /dev /proc /sys ─► vda (EROFS) + vdb or tmpfs ─► overlay ─► switch root ─► read the shell ─► serve the control port
func Boot() {
	var u upper
	err := boot(&u)
	fatal(err, u)
}

// boot fills u in as soon as there is a writable layer.
func boot(u *upper) error {
	ignoreChildSignals()
	if err := mountFirst(); err != nil {
		return err
	}
	options, err := readOptions("/proc/cmdline")
	if err != nil {
		return err
	}
	late, err := openOrigin(options)
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
	if err := settle(options); err != nil {
		return err
	}
	preload(shellPath)
	return serve(*u, late)
}

// serve answers the host until the machine is switched off.
func serve(u upper, late lateRoot) error {
	port, err := openPort(controlPort)
	if err != nil {
		return err
	}
	s, err := New()
	if err != nil {
		return err
	}
	s.upper, s.late = u, late
	if err := serveBulk(s); err != nil {
		return err
	}
	if err := rpc.Serve(context.Background(), port, s, nil); err != nil {
		return fmt.Errorf("control port: %w", err)
	}
	return errors.New("control port was closed")
}

// serveBulk has the bulk port served, where there is one, for as long as the machine runs. A VM whose bulk port fails
// later goes on without.
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
	s.archive = service
	go func() { _ = rpc.ServeBulk(context.Background(), port, service, s, nil) }()
	return nil
}

// fatal ends the machine so that the host sees why: the console's last line is shown to the user.
func fatal(err error, u upper) {
	line := "agentvm-guest: fatal: " + err.Error() + "\n"
	if f, e := os.OpenFile("/dev/console", os.O_WRONLY|syscall.O_NOCTTY, 0); e == nil {
		_, _ = f.WriteString(line)
		_ = f.Close()
	} else {
		_, _ = os.Stderr.WriteString(line)
	}
	powerOff(u)
}
