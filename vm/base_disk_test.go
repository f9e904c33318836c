package vm_test

import (
	"testing"

	"agentvm/vm"
)

// VMs with a writable disk start from a base, which has nothing of any disk: what is seen is what is on the VM's own, whatever was
// written there since the base was made, by which VM ever.
func TestBaseWithDisk(t *testing.T) {
	c := ownKind(t)
	on := func(path string) vm.Config { c := c; c.Disk = path; return c }
	a, b := newDisk(t), newDisk(t)
	id := "cat /etc/machine-id"

	first, fromBase := startOne(t, on(a)) // leaves the base
	if fromBase {
		t.Fatal("there is a base already")
	}
	wantOutput(t, first, "echo one >/root/file; touch /root/only-a; cat /proc/sys/kernel/hostname >/dev/null", "")
	machine := string(mustRun(t, first, vm.Command{Line: id}).Stdout)
	stop(t, first)

	for turn := range 3 {
		v, fromBase := startOne(t, on(a))
		if !fromBase {
			t.Fatal("it boots")
		}
		wantOutput(t, v, "cat /root/file", map[int]string{0: "one\n", 1: "more 0\n", 2: "more 1\n"}[turn])
		wantOutput(t, v, id, machine)
		wantOutput(t, v, "dd if=/dev/urandom of=/root/noise bs=64k count=8 2>/dev/null; sha256sum /root/noise >/root/sum; echo more "+string(rune('0'+turn))+" >/root/file; sync", "")
		if turn == 1 {
			v.Close() // as a crash: the journal has to be replayed
		} else {
			stop(t, v)
		}
		if turn == 0 {
			continue
		}
		other, fromBase := startOne(t, on(b))
		if !fromBase {
			t.Error("the other disk's VM boots")
		}
		wantOutput(t, other, "ls /root/only-a 2>/dev/null; touch /root/only-b; cat /etc/machine-id | wc -c", "33\n")
		if got := string(mustRun(t, other, vm.Command{Line: id}).Stdout); got == machine {
			t.Error("two disks with one machine-id")
		}
		stop(t, other)
	}
	v, _ := startOne(t, on(a))
	wantOutput(t, v, "cd /root && sha256sum -c sum 2>&1; ls only-a; ls only-b 2>/dev/null; grep -c nameserver /etc/resolv.conf", "/root/noise: OK\nonly-a\n1\n")
	stop(t, v)
}

func stop(t *testing.T, v *vm.VM) {
	t.Helper()
	if err := v.Stop(limited(t)); err != nil {
		t.Error(err)
	}
}
