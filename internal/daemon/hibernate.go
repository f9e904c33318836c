package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agentvm/internal/storage/snapshot"
	"agentvm/nat"
	"agentvm/vm"
)

// A VM that is not used for Config.HibernateAfter is saved in its folder, and its daemon ends. A client that connects wakes it:
//
//	running ─ idle ─► clients are refused, connections wait ─► paused ─► saved ─► restore.json ─► sockets to the activator ─► the daemon ends
//	   ▲                                                                              │
//	   └── restored: the same programs, disk, address, ports and name ◄── Store.Connect, Start, Stop; the activator
//
// From restore.json on, the saved machine with its disk is what the VM is: its daemon, if it is killed then, has changed nothing since. The file
// saving says to clients that are refused that they shall wait.

// hibernatedFiles are the saved machines in a VM's folder. There is another one until the VM that continued from it has ended where an open
// file cannot be removed.
const hibernatedFiles = "hibernated-*" + snapshot.Suffix

func (p paths) saving() string { return filepath.Join(p.dir, "saving") }

// asleep reports whether the VM is saved, and continues when it is needed.
func (p paths) asleep() bool {
	r, err := p.readRestoration()
	return err == nil && r.wakes()
}

// dropSaved removes saved machines that nothing needs, which an interrupted hibernation or a VM that had one open has left.
func (p paths) dropSaved(needed string) {
	list, _ := filepath.Glob(filepath.Join(p.dir, hibernatedFiles+"*")) // disks beside them, too
	for _, path := range list {
		end := strings.Index(filepath.Base(path), snapshot.Suffix) + len(snapshot.Suffix)
		if path = filepath.Join(p.dir, filepath.Base(path)[:end]); path != needed {
			snapshot.RemoveFile(path)
		}
	}
}

// savedIn takes from the restoration what the daemon needs of it, and returns the file of a VM that is hibernated.
func (d *daemon) savedIn() string {
	if d.restore == nil || !d.restore.Hibernated {
		return ""
	}
	if d.restore.wakes() {
		d.began = d.restore.Began
	}
	return d.restore.Snapshot
}

// reasonToHibernate returns why the VM is to be saved; empty when it is not.
func (d *daemon) reasonToHibernate(ctx context.Context, now time.Time) string {
	after := time.Duration(d.settings().HibernateAfter)
	v, err := d.running()
	if after <= 0 || err != nil {
		return ""
	}
	if stats, err := v.NetworkStats(ctx); err != nil || hasFlows(stats) {
		d.lastFlow = now
	}
	visits, accepted := d.listeners.used()
	if visits > 0 {
		return ""
	}
	if accepted.After(d.lastFlow) {
		d.lastFlow = accepted
	}
	idle := min(d.idleFor(now), now.Sub(d.lastFlow))
	if idle < after {
		return ""
	}
	err = mayLeave(ctx, v, d.config.Sidecars)
	if err == nil {
		err = d.canHold(ctx, v)
	}
	if err != nil {
		if err.Error() != d.awakeFor {
			d.awakeFor = err.Error()
			d.logger.Warn("the VM is idle and not hibernated", "error", err)
		}
		return ""
	}
	d.awakeFor = ""
	return fmt.Sprintf("hibernated: it has not been used for %v", idle.Round(time.Second))
}

// mayLeave returns what would be lost if the VM was saved: the servers of mounts that were added end with it, and a guest's supervisor of an
// earlier version does not keep the output of sidecars.
func mayLeave(ctx context.Context, v VM, sidecars []Sidecar) error {
	if len(sidecars) > 0 && !v.CanAdopt() {
		return errors.New("its sidecars keep it awake, because it continues from a snapshot of an earlier version: agentvm restart boots it anew")
	}
	mounts, err := v.Mounts(ctx)
	for _, m := range mounts {
		if m.Added {
			return fmt.Errorf("the mount at %s, which was added, keeps it awake: agentvm mount rm removes it", m.Mount.GuestPath)
		}
	}
	return err
}

// canHold returns why nothing would listen at the VM's ports while it is hibernated. A VM without any needs nothing.
func (d *daemon) canHold(ctx context.Context, v VM) error {
	ports, err := v.Ports(ctx)
	if err != nil || len(ports) == 0 && !d.previews.listens() {
		return err
	}
	if slices.ContainsFunc(ports, func(f nat.Forward) bool { return f.Protocol == "udp" }) {
		return errors.New("published UDP ports keep it awake")
	}
	if !passesFiles {
		return errors.New("published ports and previews keep it awake on this system")
	}
	for _, s := range d.settings().Secrets {
		if strings.HasPrefix(s.Source, "env:") {
			return fmt.Errorf("it has published ports or previews, and secret %s of an environment variable, which a connection could not give it when it wakes: take one of a file", s.Name)
		}
	}
	if _, err := d.store.askActivator(ctx, activatorRequest{Do: doAsk}, nil); err != nil {
		return fmt.Errorf("nothing would hold its ports until the next command of agentvm (agentvm ps, say): %w", err)
	}
	return nil
}

// hasFlows reports whether there are connections, which saving the VM would break.
func hasFlows(s vm.NetworkStats) bool {
	return slices.ContainsFunc(s.Limits, func(l nat.LimitUse) bool { return strings.HasSuffix(l.Limit, " flows") && l.Used > 0 })
}

// hibernate saves the VM and ends the daemon. It reports whether it did. When the VM is used meanwhile, or cannot be saved, it runs on.
func (d *daemon) hibernate(ctx context.Context, why string) bool {
	v, err := d.running()
	if err != nil {
		return false
	}
	if err := os.WriteFile(d.paths.saving(), nil, 0o600); err != nil {
		d.runOn(v, "", err)
		return false
	}
	if !d.clients.shut() || !d.listeners.hold() {
		d.runOn(v, "", nil)
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // an order to stop does not wait for it
		select {
		case <-d.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	if !d.holdSidecars() {
		d.runOn(v, "", nil)
		return false
	}
	defer d.starting.Unlock()
	stats, err := v.NetworkStats(ctx) // again: a connection may have come since
	if err == nil && (hasFlows(stats) || mayLeave(ctx, v, d.config.Sidecars) != nil) {
		d.runOn(v, "", nil)
		return false
	}
	path := filepath.Join(d.paths.dir, fmt.Sprintf("hibernated-%d%s", time.Now().UnixNano(), snapshot.Suffix))
	if err == nil {
		d.syncFiles(ctx, v)
		err = v.Pause(ctx)
	}
	if err == nil {
		_, err = v.Snapshot(ctx, path, vm.SnapshotOptions{Brief: true})
	}
	if err == nil {
		err = d.fallAsleep(ctx, v, path)
	}
	if err != nil {
		d.runOn(v, path, err)
		return false
	}
	d.order(why, 0) // its programs need not end
	return true
}

// fallAsleep has the VM continue from the saved machine, unless it is to be stopped; an order to stop that comes meanwhile is for a VM that is
// hibernated already.
func (d *daemon) fallAsleep(ctx context.Context, v VM, path string) error {
	d.falling.Lock()
	defer d.falling.Unlock()
	if active, _ := d.jobs.Used(); active > 0 || d.isStopping() {
		return errors.New("it is used again, or to end")
	}
	if err := d.leave(ctx, v, path); err != nil {
		return err
	}
	d.jobs.Suspend()
	d.asleep.Store(true)
	return nil
}

// leave writes from where the VM continues, and gives its sockets to the activator.
func (d *daemon) leave(ctx context.Context, v VM, path string) error {
	r := Restoration{Snapshot: path, KeepPrograms: true, SameIdentity: true, Hibernated: true, Began: d.began, Sidecars: d.sidecarStates()}
	ports, err := v.Ports(ctx)
	if err != nil {
		return err
	}
	files, err := d.listeners.files(&r, ports)
	if err != nil {
		return err
	}
	defer closeFiles(files)
	if len(files) > 0 {
		r.Key = newToken()
	}
	err = d.paths.writeRestoration(r)
	if err == nil && len(files) > 0 {
		_, err = d.store.askActivator(ctx, activatorRequest{doGive, d.name, r.Key}, files)
	}
	return err
}

// runOn has the VM run on. It tries again when the VM has been idle for as long once more.
func (d *daemon) runOn(v VM, path string, why error) {
	if why != nil {
		d.logger.Warn("the VM is not hibernated", "error", why)
		d.lastFlow = time.Now()
	}
	if path != "" {
		_ = os.Remove(d.paths.restore())
		snapshot.RemoveFile(path)
	}
	if v.Paused() && !d.isStopping() {
		if err := v.Resume(context.Background()); err != nil {
			d.logger.Error("resume the VM", "error", err)
		}
	}
	d.listeners.release()
	d.clients.open()
	_ = os.Remove(d.paths.saving())
}

// forgetSaved removes the machine from which a VM has continued. Where it is open it stays, until dropSaved.
func (r *Restoration) forgetSaved() {
	if r.Hibernated {
		snapshot.RemoveFile(r.Snapshot)
	}
}
