//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"agentvm/guest/sockets"
	"agentvm/rpc"
)

// confined is where the ports are denied: to every program, the supervisor's own included.
const confined = "/sys/fs/cgroup"

// confinement keeps programs from listening at TCP ports: a program of confine_bpf.go refuses bind(2), and what listens already is
// closed. It stops those who do not know that it is there; root can take it away, and a port that the kernel chooses is not looked at.
// The host refuses all connections to these ports, whatever the guest does.
type confinement struct {
	attached []attachment
}

// attachment is a program that is asked at one kind of bind.
type attachment struct {
	fd     int
	attach uint32
}

// apply denies these ports, and no longer those of an earlier call.
func (c *confinement) apply(denied []rpc.PortRange) error {
	if len(denied) == 0 && len(c.attached) == 0 {
		return nil
	}
	if slices.ContainsFunc(denied, func(r rpc.PortRange) bool { return r.First == 0 || r.First > r.Last }) {
		return fmt.Errorf("ports %v: %w", denied, unix.EINVAL)
	}
	group, err := os.Open(confined)
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
	for _, a := range old { // after the new ones: there is no moment without
		errs = append(errs, bpfDetach(int(group.Fd()), a), unix.Close(a.fd))
	}
	if len(denied) > 0 {
		errs = append(errs, sockets.CloseListeners(func(port uint16) bool {
			return slices.ContainsFunc(denied, func(r rpc.PortRange) bool { return r.First <= port && port <= r.Last })
		}))
	}
	return errors.Join(errs...)
}

func (c *confinement) attach(group int, denied []rpc.PortRange) error {
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
func (s *Supervisor) confine(denied []rpc.PortRange) (warning string) {
	if !s.whole {
		return ""
	}
	if err := s.confinement.apply(denied); err != nil {
		return "programs can listen at ports that network.listen denies, though nobody outside reaches them: " + err.Error()
	}
	return ""
}
