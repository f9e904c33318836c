//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/sockets"
)

// cgroupRoot is the cgroup in which ports are denied. It contains every process, the supervisor included.
const cgroupRoot = "/sys/fs/cgroup"

// portAccess keeps programs from listening at TCP ports: a program of ports_bpf.go refuses bind(2), and listeners that exist already
// are closed. This is a courtesy that gives programs an early error, not protection: root in the guest can remove it, and it does not
// check a port that the kernel chooses. The host refuses all connections to these ports, whatever the guest does.
type portAccess struct {
	attached []attachment
}

// attachment is a BPF program that decides about one kind of bind, of IPv4 or of IPv6 sockets.
type attachment struct {
	fd     int
	attach uint32
}

// apply denies these ports and allows those that only an earlier call denied.
func (c *portAccess) apply(denied []guestrpc.PortRange) error {
	if len(denied) == 0 && len(c.attached) == 0 {
		return nil
	}
	if slices.ContainsFunc(denied, func(r guestrpc.PortRange) bool { return r.First == 0 || r.First > r.Last }) {
		return fmt.Errorf("ports %v: %w", denied, unix.EINVAL)
	}
	group, err := os.Open(cgroupRoot)
	if err != nil {
		return err
	}
	defer func() { _ = group.Close() }()
	old := c.attached
	c.attached = nil
	var errs []error
	if len(denied) > 0 {
		errs = append(errs, c.attach(int(group.Fd()), denied))
	}
	for _, a := range old { // after the new ones are attached, so that the ports are never open in between
		errs = append(errs, bpfDetach(int(group.Fd()), a), unix.Close(a.fd))
	}
	if len(denied) > 0 {
		errs = append(errs, sockets.CloseListeners(func(port uint16) bool {
			return slices.ContainsFunc(denied, func(r guestrpc.PortRange) bool { return r.First <= port && port <= r.Last })
		}))
	}
	return errors.Join(errs...)
}

func (c *portAccess) attach(group int, denied []guestrpc.PortRange) error {
	for _, attach := range []uint32{unix.BPF_CGROUP_INET4_BIND, unix.BPF_CGROUP_INET6_BIND} {
		fd, err := bpfLoad(bindProgram(denied), attach)
		if err != nil {
			return fmt.Errorf("load the program that denies ports: %w", err)
		}
		a := attachment{fd, attach}
		if err := bpfAttach(group, a); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("attach the program that denies ports: %w", err)
		}
		c.attached = append(c.attached, a)
	}
	return nil
}

// confine is apply for Start. A kernel that cannot do it is no reason not to start: the host denies the ports anyway.
func (s *Supervisor) denyPorts(denied []guestrpc.PortRange) (warning string) {
	if !s.isInit {
		return ""
	}
	if err := s.ports.apply(denied); err != nil {
		return "programs can listen at ports that network.listen denies, though nothing outside reaches them: " + err.Error()
	}
	return ""
}
