package main

import (
	"os"
	"path/filepath"
	"sync"

	"agentvm/images"
	"agentvm/internal/daemon"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/debugenv"
	"agentvm/vm"
)

// confineBeforeRun has this process confine itself, as daemons do, before the guest of a VM without a name executes anything: it keeps what
// is open, and the files that the VM and the end of the command need.
func (c *cli) confineBeforeRun(f *vmFlags, config *vm.Config) {
	switch {
	case debugenv.Has("noconfine"):
		c.log.Info("this process is not confined: AGENTVM_DEBUG=noconfine switches it off")
	case len(config.HostCommands) > 0:
		c.log.Info("this process is not confined: --bind has it run programs of this host")
	default:
		asked := *config // with the mounts as the flags name them
		config.BeforeRun = sync.OnceFunc(func() { c.confine(f, asked) })
	}
}

func (c *cli) confine(f *vmFlags, config vm.Config) {
	store, err := images.DefaultDir()
	if err != nil {
		c.log.Debug("confinement", "error", err)
	}
	rules := daemon.VMRules(store, config)
	if probe, err := atomicfile.Create(filepath.Join(store, "probe")); err == nil {
		_ = probe.Discard()
	} else { // the VM has a temporary store, which is removed at its end
		rules.Write = append(rules.Write, os.TempDir())
	}
	if f.changes.apply { // after the command
		for _, m := range config.Mounts {
			if m.CopyOnWrite {
				rules.WriteMounts = append(rules.WriteMounts, m.HostPath)
			}
		}
	}
	for _, l := range confine.Process(rules) {
		c.confined = c.confined || l.Name == confine.Seccomp && l.InForce
		c.log.Debug("confinement", "layer", l.Name, "in force", l.InForce, "note", l.Note)
	}
}
