package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"agentvm/egress"
	"agentvm/images"
	"agentvm/internal/host/hostpath"
	"agentvm/vm"
)

// vmConfig is c as a vm.Config, whose paths mean what they meant when they were configured. bootVM adds open files and loggers.
func (c Config) vmConfig() (v vm.Config, err error) {
	v = c.pinned()
	if c.CAFile != "" {
		if v.CACertificate, err = c.readHostFile(c.CAFile); err != nil {
			return v, fmt.Errorf("CA certificate: %w", err)
		}
	}
	return v, nil
}

// pinned is the VM's part of the configuration, with the identities of its directories and sockets.
func (c Config) pinned() vm.Config {
	v := c.Config
	v.UnixSockets, v.Mounts = slices.Clone(c.UnixSockets), c.VMMounts()
	for i := range v.UnixSockets {
		v.UnixSockets[i].Identity = hostpath.Find(c.HostPaths, v.UnixSockets[i].Host)
	}
	return v
}

// VMMounts returns the mounts with the identities of their directories.
func (c Config) VMMounts() []vm.Mount {
	list := slices.Clone(c.Mounts)
	for i := range list {
		list[i].Identity = hostpath.Find(c.HostPaths, list[i].HostPath)
	}
	return list
}

// bootVM is the bootFunc of Run.
func bootVM(ctx context.Context, b booting) (VM, error) {
	config, err := b.config.vmConfig()
	if err != nil {
		return nil, err
	}
	if b.restore == nil || b.restore.FilesOnly || !b.restore.SameIdentity { // with the same identity the saved host name is the default
		config.Hostname = cmp.Or(config.Hostname, b.name)
	}
	config.Network.Member, config.Network.Listen = b.name, b.listen
	config.Logger, config.Program = b.logger, b.program
	config.Progress = reportProgress(b.progress)
	config.Overrun, config.BeforeRun = b.overrun, b.confine
	if b.config.DiskSize >= 0 {
		config.Disk = b.paths.disk()
	}
	if config.Disk != "" && b.restore == nil {
		if err := b.paths.makeDisk(b.config.DiskSize); err != nil {
			return nil, err
		}
	}
	files, err := openFiles(b, &config)
	if err != nil {
		return nil, err
	}
	noted := background(func() error {
		if config.Disk == "" {
			return nil
		}
		return b.paths.noteDisk()
	})
	v, err := b.restore.start(ctx, config)
	if failed := noted(); err == nil && failed != nil {
		err = errors.Join(failed, v.Close())
	}
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return &machine{VM: v, config: b.config, files: files}, nil
}

// machineFiles are the files to which a VM's network is recorded.
type machineFiles struct {
	capture *captureFile
	audit   *auditLog
}

// openFiles opens them and sets them in config.
func openFiles(b booting, config *vm.Config) (f *machineFiles, err error) {
	f = &machineFiles{}
	n := &config.Network
	open := func(path string, flag int) (*os.File, error) {
		return config.OpenOutput(path, hostpath.Find(b.config.HostPaths, path), flag)
	}
	if n.Disabled {
		return f, nil
	}
	if f.capture, err = openCapture(b.config.CaptureFile, b.again, open); err != nil {
		return nil, err
	}
	if f.capture != nil {
		n.Capture = f.capture
	}
	if f.audit, err = openAudit(b.paths.audit(), b.config.NetworkLog, open, b.logger); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	n.Audit, n.AuditProcesses = f.audit.write, b.config.NetworkLog != ""
	f.audit.write(egress.StartEvent(time.Now(), n.Policy))
	return f, nil
}

// Close closes them, after the VM.
func (f *machineFiles) Close() error { return errors.Join(f.capture.Close(), f.audit.Close()) }

// openOutput opens a file that the configuration names, with O_APPEND or O_TRUNC.
type openOutput func(path string, flag int) (*os.File, error)

// captureFile is the file of a packet capture. A nil one can be closed.
type captureFile struct {
	*os.File
	skip int // bytes of a header that the file has already
}

// captureHeader is the size in bytes of a pcap file's header, which a file has once, also when its VM restarts.
const captureHeader = 24

var _ io.WriteCloser = (*captureFile)(nil)

// openCapture begins a capture, or continues one when the guest has restarted itself: otherwise a guest could delete its traces by
// restarting.
func openCapture(path string, again bool, open openOutput) (*captureFile, error) {
	if path == "" {
		return nil, nil
	}
	how, skip := os.O_TRUNC, 0
	if again {
		how, skip = os.O_APPEND, captureHeader
	}
	f, err := open(path, how)
	if err != nil {
		return nil, fmt.Errorf("packet capture: %w", err)
	}
	return &captureFile{f, skip}, nil
}

// Write leaves out the header of a capture that is continued.
func (f *captureFile) Write(b []byte) (int, error) {
	left := min(f.skip, len(b))
	f.skip -= left
	n, err := f.File.Write(b[left:])
	return left + n, err
}

// Close closes the file, if there is one.
func (f *captureFile) Close() error {
	if f == nil {
		return nil
	}
	return f.File.Close()
}

// progressTime is the interval between lines of a stage.
const progressTime = time.Second

// reportProgress makes lines of an image's download: one at a stage's beginning, one a second, one at its end.
func reportProgress(report func(slog.Level, string)) images.ProgressFunc {
	var mu sync.Mutex
	var stage images.Stage
	var last time.Time
	return func(p images.Progress) {
		mu.Lock()
		defer mu.Unlock()
		ended := p.Total > 0 && p.Done == p.Total
		if p.Stage == stage && time.Since(last) < progressTime && !ended {
			return
		}
		stage, last = p.Stage, time.Now()
		text := fmt.Sprintf("%s %s: %.1f MB", p.Stage, p.Name, float64(p.Done)/1e6)
		if p.Total > 0 {
			text += fmt.Sprintf(" of %.1f MB", float64(p.Total)/1e6)
		}
		report(slog.LevelInfo, text)
	}
}
