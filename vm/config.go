package vm

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"agentvm/emulator"
	"agentvm/images"
	"agentvm/internal/debugword"
	"agentvm/mount"
)

const (
	// DefaultMemory is a VM's memory in bytes unless Config.Memory says otherwise.
	DefaultMemory = emulator.DefaultMemory
	// MinMemory is the least memory in bytes with which the kernel and its first program start.
	MinMemory = 40 << 20
	// MaxMemory is the most memory in bytes that a VM can have.
	MaxMemory = emulator.MaxMemory

	defaultHostname    = "agentvm"
	defaultBootTimeout = time.Minute
	pageSize           = 4096
)

// Config describes a VM. The zero value boots Alpine with a network.
type Config struct {
	// Image names what to boot, see images.Store.Pull. Default: "alpine", or the image built into the program when
	// Alpine is not in the store and no server can be reached; a warning to Logger then says so.
	Image string
	// Memory is the guest's RAM in bytes; it is rounded up to whole pages. It costs the host what the guest has touched.
	// Default: DefaultMemory.
	Memory uint64
	// Mounts are host directories that the guest sees. Default: none.
	Mounts []mount.Spec
	// Disk is the path of a disk, made by disk.Create, that holds what the guest changes of its image, so that it is there at the
	// next start from the same image. One VM can use it at a time: else the error is a *disk.InUseError. Stop has the guest write
	// everything back; after Close or a crash it finds what a computer finds after a power cut. Default: none, changes are kept
	// in memory and go with the VM.
	Disk string
	// Env holds KEY=VALUE for every command, above the image's own. A command's Env wins over it.
	Env []string
	// Network is the guest's network. Default: it reaches every public address, and nothing of this host.
	Network Network
	// Access says which ports of the guest may be listened at and connected to, and by whom. Default: the VM's owner reaches every
	// port, and outsiders those of Network.Forwards.
	Access Access
	// Hostname is the guest's name. Default: "agentvm".
	Hostname string

	// CACertificate holds certificates in PEM that the guest's programs trust besides those of the image: they are added to
	// the image's bundle. It goes into the guest, so a private key in it is an error. Default: none.
	CACertificate []byte
	// NoNewPrivileges has set-user-ID bits and file capabilities give nothing to any program of the guest.
	NoNewPrivileges bool
	// UnixSockets are sockets of this host that the guest's programs can connect to. Default: none.
	UnixSockets []UnixSocket

	// StoreDir is the directory of the image store and of the cache of compiled code. Default: images.DefaultDir.
	StoreDir string
	// Progress is told how the download of an image goes. Default: nobody.
	Progress images.ProgressFunc

	// ColdBoot has the VM boot even when it could go on from a saved machine, and leaves no such machine for others. The word
	// nobase in the environment variable AGENTVM_DEBUG does the same. Default: see Start.
	ColdBoot bool
	// Kernel is an uncompressed RISC-V Image to boot instead of the one built into the program.
	Kernel []byte
	// KernelArguments are added to the kernel's command line.
	KernelArguments string
	// Console receives a copy of what the guest's kernel prints. A Write that blocks stops the guest's console.
	// Default: nobody; the last ConsoleTail bytes are kept for errors anyway.
	Console io.Writer
	// BootTimeout bounds the time from the start of the machine until the guest answers. Default: 1 minute.
	BootTimeout time.Duration

	// Logger gets warnings and, at debug level, how long each step took. Nil discards.
	Logger *slog.Logger
}

// withDefaults checks c and fills in what is not given.
func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.Hostname == "" {
		c.Hostname = defaultHostname
	}
	if c.BootTimeout <= 0 {
		c.BootTimeout = defaultBootTimeout
	}
	if c.Memory < MinMemory || c.Memory > MaxMemory {
		return c, fmt.Errorf("memory of %d MiB: a VM needs at least %d MiB and can have at most %d MiB",
			c.Memory>>20, MinMemory>>20, MaxMemory>>20)
	}
	c.Memory = wholePages(c.Memory)
	c.ColdBoot = c.ColdBoot || debugword.Has("nobase")
	if err := checkEnv(c.Env); err != nil {
		return c, err
	}
	if err := c.Network.check(); err != nil {
		return c, err
	}
	c.Network = c.Network.withDefaults()
	if err := c.checkAccess(); err != nil {
		return c, err
	}
	c.Access = c.Access.clone()
	var err error
	if c.CACertificate, err = certificates(c.CACertificate); err != nil {
		return c, err
	}
	if c.UnixSockets, err = checkUnixSockets(c.UnixSockets); err != nil {
		return c, err
	}
	return c, checkMounts(c.Mounts)
}

// wholePages rounds a size in bytes up.
func wholePages(size uint64) uint64 { return (size + pageSize - 1) &^ (pageSize - 1) }

func checkEnv(env []string) error {
	for _, kv := range env {
		key, _, found := strings.Cut(kv, "=")
		if key == "" || !found || strings.ContainsRune(kv, 0) {
			return fmt.Errorf("environment variable %.80q: want KEY=VALUE", kv)
		}
	}
	return nil
}

func checkMounts(mounts []mount.Spec) error {
	if len(mounts) > emulator.MaxShares {
		return fmt.Errorf("%d mounts: a VM can have at most %d", len(mounts), emulator.MaxShares)
	}
	seen := make(map[string]string)
	for _, m := range mounts {
		if other, taken := seen[m.GuestPath]; taken {
			return fmt.Errorf("mounts %s and %s have the same place in the guest, %s: name another with host:guest",
				other, m.HostPath, m.GuestPath)
		}
		seen[m.GuestPath] = m.HostPath
	}
	return nil
}
