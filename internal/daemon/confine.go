package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agentvm/images"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/host/debugenv"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/host/private"
	"agentvm/internal/network/preview"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/storage/translations"
	"agentvm/vm"
)

// confine removes the rights that the daemon's process does not need, before its guest executes anything (vm.Config.BeforeRun). It
// happens once and stays in force when the guest restarts. AGENTVM_DEBUG=noconfine switches it off.
func (d *daemon) confine() {
	if !d.timing.ownProcess {
		return
	}
	d.confined.Do(func() {
		began := time.Now()
		layers := []confine.Layer{{Name: "confinement of the process", Note: "switched off by AGENTVM_DEBUG=noconfine"}}
		if !debugenv.Has("noconfine") {
			layers = confine.Process(d.confineRules())
		}
		for _, l := range layers {
			d.logger.Info("confinement", "layer", l.Name, "in force", l.InForce, "note", l.Note)
		}
		d.logger.Debug("timing: confined the process", "took", time.Since(began))
		d.layers.Store(&layers)
	})
}

// confineRules are the host's files that the daemon needs after it has made its VM, also to make it again. It needs neither the files of
// other VMs nor other files of the user. Missing folders are made here, because a rule is for an existing file.
func (d *daemon) confineRules() confine.Rules {
	store := d.imageStore()
	if _, err := snapshot.OpenStore(store); err != nil { // which makes its folders and its key
		d.logger.Debug("confinement", "error", err)
	}
	forks, previews := filepath.Join(store, "forks"), filepath.Dir(d.store.PreviewPath())
	for _, folder := range []string{forks, previews, d.store.activator().door()} {
		if err := private.MakeFolder(folder); err != nil {
			d.logger.Debug("confinement", "error", err)
		}
	}
	if d.identity.PreviewPort != 0 { // previews are served from now on
		if store, err := preview.OpenStore(d.store.PreviewPath(), preview.Options{}); err == nil {
			_ = store.Close()
		}
	}
	r := VMRules(store, d.config.Config)
	r.Read = append(r.Read, d.store.activator().door(), d.config.CAFile)
	r.Write = append(r.Write, d.paths.dir, filepath.Join(store, "snapshots"), forks, previews, d.config.CaptureFile, d.config.NetworkLog)
	return r
}

// VMRules are the host's files that a process needs for a VM with this configuration after it has opened what the VM starts from. Compiled
// code and its key are not among them: a process writes and signs it before a guest can have a hand in that, or not at all. Translated code is: it is
// verified wherever it is loaded, and like a base it decides only what guests do.
func VMRules(store string, c vm.Config) confine.Rules {
	in := func(name string) string { return filepath.Join(store, name) }
	r := confine.Rules{
		Read: []string{
			in("blobs"), in("layers"), in("disks"), in("images"), in("snapshot.key"), in("mounts"),
			"/etc/hosts", "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/proc/self", "/proc/sys/kernel/random/boot_id",
		},
		Write: []string{in("locks"), in("bases"), in(translations.Folder)},
	}
	if record, err := hostpath.MakeRecord(); err == nil { // a rule is for an existing folder; without one nothing was noted
		r.Read = append(r.Read, record)
	}
	for _, name := range c.Network.Networks {
		r.Sockets = append(r.Sockets, filepath.Join(in("networks"), name)) // of which there is a new one when the guest starts again
	}
	r.Read = append(r.Read, resolvers()...)
	for _, s := range c.Secrets { // read again when the guest restarts itself
		if path, isFile := strings.CutPrefix(s.Source, "file:"); isFile {
			r.Read = append(r.Read, path)
		}
	}
	for _, m := range c.Mounts {
		if m.FixedHost() {
			r.ReadMounts = append(r.ReadMounts, m.HostPath)
		} else {
			r.WriteMounts = append(r.WriteMounts, m.HostPath)
		}
	}
	return r
}

// confineActivator removes the rights that the activator does not need: it reads which VMs there are, and keeps its own files. What wakes VMs is
// the waker, which is another process.
func (s Store) confineActivator(logger *slog.Logger) {
	if debugenv.Has("noconfine") {
		logger.Info("the activator is not confined: AGENTVM_DEBUG=noconfine switches it off")
		return
	}
	served := filepath.Dir(s.servedPath(""))
	for _, folder := range []string{s.Dir, served} { // a rule is for an existing folder
		if err := private.MakeFolder(folder); err != nil {
			logger.Debug("confinement", "error", err)
		}
	}
	layers := confine.Process(confine.Rules{
		Read:    []string{s.Dir, served, "/etc/localtime", "/usr/share/zoneinfo", "/dev/null", "/proc/self", "/proc/sys/net/core/somaxconn"},
		Sockets: []string{s.activator().dir},
	})
	for _, l := range layers {
		logger.Info("confinement", "layer", l.Name, "in force", l.InForce, "note", l.Note)
	}
}

// imageStore is where images, snapshots and bases are.
func (d *daemon) imageStore() string {
	dir := d.config.StoreDir
	if dir == "" {
		dir, _ = images.DefaultDir() // the VM has been made, so that there is one
	}
	return dir
}

// resolvers are the files with the host's DNS servers, which are read when the guest restarts. The system replaces the file, so that the
// rule is for its folder; not for /etc when the user is root, because it has secrets that only root can read.
func resolvers() []string {
	const name = "/etc/resolv.conf"
	file, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil
	}
	if folder := filepath.Dir(file); folder != "/etc" || os.Geteuid() != 0 {
		return []string{file, folder}
	}
	return []string{file}
}

// inForce are the layers that confine the daemon's process; none before it has made its VM.
func (d *daemon) inForce() []confine.Layer {
	if layers := d.layers.Load(); layers != nil {
		return *layers
	}
	return nil
}
