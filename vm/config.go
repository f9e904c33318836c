package vm

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"agentvm/images"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/budget"
	"agentvm/internal/host/debugenv"
	"agentvm/internal/host/lograte"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/network/reach"
	"agentvm/internal/network/router"
	"agentvm/internal/network/secret"
	"agentvm/internal/share/mount"
	"agentvm/internal/work/bind"
	"agentvm/nat"
)

const (
	// DefaultMemory is a VM's memory in bytes unless Config.Memory says otherwise.
	DefaultMemory = machine.DefaultMemory
	// DefaultMaxOutput is the default of Command.MaxOutput: how many bytes of each stream are kept.
	DefaultMaxOutput = 16 << 20
	// MinMemory is the least memory in bytes with which the kernel and its first program start.
	MinMemory = 40 << 20
	// MaxMemory is the most memory in bytes that a VM can have.
	MaxMemory = machine.MaxMemory

	// DefaultHostMemory is the default of Config.HostMemory, in bytes.
	// It is enough for as many connections of each kind as nat.Limits lets there be by default.
	DefaultHostMemory = 256 << 20
	// MaxCPUs bounds Config.CPUs.
	MaxCPUs = machine.MaxHarts
	// MinHostMemory is the least Config.HostMemory, in bytes.
	MinHostMemory = 16 << 20

	defaultHostname    = "agentvm"
	defaultBootTimeout = time.Minute
	longestBoot        = 10   // times as long, for a guest that gets little of a processor
	bootInstructions   = 20e9 // many more than any guest needs before it answers: ours some 100 million
	idleRate           = 50e3 // instructions a second, twice those of a guest that waits
	pageSize           = 4096
)

// Config describes a VM. The zero value boots Alpine with a network. As JSON it is the part of a description that one can keep: no open
// files, no functions, and nothing of the process.
type Config struct {
	// Image names what to boot, see images.Store.Pull. Default: "alpine", or the image built into the program when
	// Alpine is not in the store and no server can be reached; a warning to Logger then says so.
	Image string `json:"image,omitempty"`
	// Platform is that of the VM and its image, as platform.Parse reads it: linux/riscv64 or linux/arm64. Default: what the image is for, riscv64
	// when it is for both. A restored VM has the platform that it was saved with.
	Platform string `json:"platform,omitempty"`
	// PublicRegistries has the image come from no registry on a private address, see images.Config.
	PublicRegistries bool `json:"publicRegistries,omitempty"`
	// Memory is the guest's RAM in bytes; it is rounded up to whole pages. It costs the host what the guest has touched.
	// Default: DefaultMemory.
	Memory uint64 `json:"memory,omitempty"`
	// CPUs is how many processors the guest has, 1 to MaxCPUs; several exist on linux/arm64 alone, which an image for both then is for. Each
	// that works takes a thread of the host. Default: 1. A restored VM has as many as it was saved with.
	CPUs int `json:"cpus,omitempty"`
	// HostMemory bounds, in bytes, the memory that the guest takes on this host besides its own Memory: buffers of its
	// network's connections, what it leaves unread and unanswered, and files that it has open in mounts. When it is used up, new
	// connections are refused and files are not opened; there is a warning to Logger from 80 % on. Default: DefaultHostMemory.
	HostMemory int64 `json:"hostMemory,omitempty"`
	// Mounts are host directories that the guest sees. Default: none.
	Mounts []Mount `json:"mounts,omitempty"`
	// Disk is the path of a disk, made by CreateDisk, that holds what the guest changes of its image, so that it is there at the
	// next start from the same image. One VM can use it at a time: else the error is a *DiskInUseError. Stop has the guest write
	// everything back; after Close or a crash it finds what a computer finds after a power cut. Default: none, changes are kept
	// in memory and are lost when the VM ends.
	Disk string `json:"-"`
	// Env holds KEY=VALUE for every command, above the image's own. A command's Env wins over it.
	Env []string `json:"env,omitempty"`
	// WorkingDir is where commands start that name no directory. It is made when it is missing. Default: the image's, which is made too, else /.
	WorkingDir string `json:"workingDir,omitempty"`
	// Network is the guest's network. Default: it reaches every public address, and nothing of this host.
	Network Network `json:"network,omitzero"`
	// Access says which ports of the guest may be listened at and connected to, and who may do so. Default: the VM's owner reaches every
	// port, and outsiders those of Network.Forwards.
	Access Access `json:"access,omitzero"`
	// Hostname is the guest's name. Default: "agentvm".
	Hostname string `json:"hostname,omitempty"`

	// CACertificate holds certificates in PEM that the guest's programs trust besides those of the image: they are added to
	// the image's bundle. It goes into the guest, so a private key in it is an error. Default: none.
	CACertificate []byte `json:"-"`
	// Secrets are credentials that the guest's programs use and that the guest never has: they see placeholders, which are replaced on the
	// way to the hosts that each names. The connections to those are opened and their certificates are of an authority of this VM, which
	// the guest trusts as it does CACertificate. Values are read when the VM starts. Default: none. docs/guide/secrets.md has the whole picture.
	Secrets []Secret `json:"secrets,omitempty"`
	// NoNewPrivileges makes set-user-ID bits and file capabilities ineffective for all programs of the guest.
	NoNewPrivileges bool `json:"noNewPrivileges,omitempty"`
	// ReadOnlyRoot makes the guest's root read-only once the VM is configured: programs that change a file of the image, or make one, fail
	// with EROFS. Mounts, /tmp, /run, /dev/shm and other file systems of their own are as without it. It prevents mistakes, not attacks: a
	// program that is root in the guest can remount the root.
	ReadOnlyRoot bool `json:"readOnlyRoot,omitempty"`
	// UnixSockets are sockets of this host that the guest's programs can connect to. Default: none.
	UnixSockets []UnixSocket `json:"sockets,omitempty"`
	// HostCommands are commands in the guest's PATH that functions of this process execute, see HostCommand. They come before those of
	// the image, except where a program sets PATH itself. A fork has its VM's unless ForkOptions.Configure changes them, a restored VM
	// those of its own Config. Default: none.
	HostCommands []HostCommand `json:"-"`
	// Recorder keeps the commands of this VM with their output and timing, changes by Files and WriteFile, and what the network's policy
	// decides. What is written to standard input and to files is not kept, and secrets are replaced by their placeholders. A fork has none
	// unless ForkOptions.Configure sets it. Default: none.
	Recorder *Recorder `json:"-"`

	// StoreDir is the directory of the image store and of the cache of compiled code. Default: images.DefaultDir.
	StoreDir string `json:"storeDir,omitempty"`
	// Progress receives how far the download of an image is. Default: none.
	Progress images.ProgressFunc `json:"-"`

	// ColdBoot has the VM boot even when it could continue from a saved machine, and leaves no such machine for others. The word
	// nobase in the environment variable AGENTVM_DEBUG does the same. Default: see Start.
	ColdBoot bool `json:"coldBoot,omitempty"`
	// Kernel is an uncompressed Image for the platform to boot instead of the one built into the program.
	Kernel []byte `json:"-"`
	// KernelArguments are added to the kernel's command line.
	KernelArguments string `json:"kernelArguments,omitempty"`
	// Console receives a copy of what the guest's kernel prints. A Write that blocks stops the guest's console.
	// Default: none; the last 64 KiB are always kept for errors.
	Console io.Writer `json:"-"`
	// BootTimeout bounds the time from the start of the machine until the guest answers. Default: 1 minute, and up to ten on a host that
	// is so busy that the guest gets little of a processor.
	BootTimeout time.Duration `json:"-"`

	// BeforeRun is called when everything that the VM needs of the host is open, before its guest runs; twice when a saved machine
	// turns out not to work and the VM boots instead. Forks do not call it. Default: none.
	BeforeRun func() `json:"-"`

	// Overrun receives how long a slice of this VM's machine lasts that should have ended within a millisecond, and 0 when that slice has
	// ended. A goroutine of the VM calls it, at most twice a second. From OverrunTime on only the end of
	// this process ends the VM, which is the caller's decision: see OverrunError. Default: none; the VM's users get the error.
	Overrun func(lasts time.Duration) `json:"-"`

	// Program is the version of this program, for snapshots, and errors about those of other versions. Default: not known.
	Program string `json:"-"`

	// Logger gets warnings and, at debug level, how long each step took. Nil discards.
	Logger *slog.Logger `json:"-"`

	memory     *budget.Budget // of HostMemory
	mountShare *mountShare
	authority  *secret.Authority // of Secrets; forks share it
	emulator   *emulatorKind     // nil: package machine's
}

// Validate returns what is wrong with the configuration, as Start would, without starting anything. It opens no file.
func (c Config) Validate() error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	return c.Network.Check()
}

// architecture returns the one that c asks for; "": any that its image has.
func (c Config) architecture() platform.Architecture {
	architecture, _ := platform.ParseOptional(c.Platform) // withDefaults has checked it
	return architecture
}

// withDefaults checks c and fills in defaults.
func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Logger = slog.New(lograte.New(c.Logger.Handler(), time.Now)) // the guest must not be able to fill the host's log
	architecture, err := platform.ParseOptional(c.Platform)
	if err != nil {
		return c, err
	}
	c.Platform = architecture.Platform()
	if c.Memory == 0 {
		c.Memory = DefaultMemory
	}
	if c.Hostname == "" {
		c.Hostname = defaultHostname
	}
	if c.Memory < MinMemory || c.Memory > MaxMemory {
		return c, fmt.Errorf("memory of %d MiB: a VM needs at least %d MiB and can have at most %d MiB",
			c.Memory>>20, MinMemory>>20, MaxMemory>>20)
	}
	c.Memory = wholePages(c.Memory)
	if c, err = c.withProcessors(); err != nil {
		return c, err
	}
	if c.HostMemory == 0 {
		c.HostMemory = DefaultHostMemory
	}
	if c.HostMemory < MinHostMemory {
		return c, fmt.Errorf("memory of %d MiB on the host: a VM needs at least %d MiB there", c.HostMemory>>20, MinHostMemory>>20)
	}
	if c.Image != "" && !IsModule(c.Image) {
		if err := images.CheckReference(c.Image); err != nil {
			return c, err
		}
	}
	c.memory = newBudget(c.HostMemory, c.Logger)
	c.mountShare = newMountShare()
	c.ColdBoot = c.ColdBoot || debugenv.Has("nobase")
	if err := checkEnv(c.Env); err != nil {
		return c, err
	}
	if c.Network, err = router.Complete(c.Network); err != nil {
		return c, err
	}
	if err = c.Access.Check(); err != nil {
		return c, fmt.Errorf("access: %w", err)
	}
	if err = c.Access.CheckForwards(c.Network.Forwards); err != nil {
		return c, err
	}
	c.Access = c.Access.Clone()
	if c.CACertificate, err = certificates(c.CACertificate); err != nil {
		return c, err
	}
	if err = c.checkSecrets(); err != nil {
		return c, err
	}
	if c.UnixSockets, err = reach.CheckUnixSockets(c.UnixSockets); err != nil {
		return c, err
	}
	if c.HostCommands, err = bind.Check(c.HostCommands); err != nil {
		return c, err
	}
	for _, s := range c.UnixSockets {
		if s.Guest == bind.SocketPath && len(c.HostCommands) > 0 {
			return c, fmt.Errorf("socket %s: the host's commands have that place in the guest: name another with host:guest", s)
		}
	}
	return c, checkMounts(c.Mounts)
}

// withProcessors checks how many there are.
func (c Config) withProcessors() (Config, error) {
	c.CPUs = max(c.CPUs, 0)
	switch {
	case c.CPUs > MaxCPUs:
		return c, fmt.Errorf("%d processors: a VM can have at most %d", c.CPUs, MaxCPUs)
	case c.CPUs <= 1:
		c.CPUs = 1
	case c.Platform == "":
		c.Platform = platform.ARM64.Platform()
	case c.architecture() != platform.ARM64:
		return c, fmt.Errorf("%d processors: a VM for %s has one, give it the platform %s", c.CPUs, c.Platform, platform.ARM64.Platform())
	}
	return c, nil
}

// several is how a saved VM's description has a number of processors: as those did that knew of one alone.
func several(cpus int) int {
	if cpus == 1 {
		return 0
	}
	return cpus
}

// guestFlags are the settings that the guest's supervisor carries out.
func (c Config) guestFlags() (flags guestrpc.StartFlags) {
	for flag, on := range map[guestrpc.StartFlags]bool{
		guestrpc.NoNewPrivileges: c.NoNewPrivileges, guestrpc.ReadOnlyRoot: c.ReadOnlyRoot,
	} {
		if on {
			flags |= flag
		}
	}
	return flags
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
	if len(mounts) > machine.MaxShares {
		return fmt.Errorf("%d mounts: a VM can have at most %d", len(mounts), machine.MaxShares)
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

// maxCertificates bounds Config.CACertificate in bytes: more than any system's whole bundle.
const maxCertificates = 1 << 20

// certificates checks PEM text and drops what is not a certificate, such as the comments in bundles.
func certificates(text []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if len(text) > maxCertificates {
		return nil, fmt.Errorf("CA certificate: %d KiB: at most %d KiB", len(text)>>10, maxCertificates>>10)
	}
	var out bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case strings.Contains(block.Type, "PRIVATE KEY"):
			return nil, errors.New("CA certificate: the file holds a private key, which the guest must not have: give the certificate only")
		case block.Type != "CERTIFICATE":
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
		if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
	}
	if out.Len() == 0 {
		return nil, errors.New("CA certificate: there is none in PEM form (-----BEGIN CERTIFICATE-----); convert DER with openssl x509 -inform der")
	}
	return out.Bytes(), nil
}

// newBudget returns the budget of a VM's HostMemory, which logs a warning when it is nearly used up.
func newBudget(bytes int64, logger *slog.Logger) *budget.Budget {
	return budget.New(bytes, func(u budget.Use) {
		logger.Warn("a limit of the VM is nearly reached", "limit", nat.MemoryLimit, "used", u.Used, "maximum", u.Limit)
	})
}
