package settings

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentvm/vm"
)

// Setting is one setting of a VM: a key of the project file, and the flag that means the same. A flag that is given wins over the file.
type Setting struct {
	Key  string // image, or network.mode for mode in the table network
	Flag string // "": no flag; what has the key's value reads it from the File
	Kind Kind

	// Fresh is true of what only a VM that boots can have: one that continues from a snapshot has that of the saved one.
	Fresh bool

	// Usage is the flag's help and Default its value. They are set where Set works; other flags belong to the commands that have them.
	Usage, Default string

	In  func(*vm.Config) *bool // of a Switch: its place in a VM's configuration
	set func(s Setting, c *vm.Config, texts []string) error

	// beyond says what the setting gives that it did not before its file was changed. Default: any change may give more. It does not ask that
	// of a setting that is harmless: no value of it gives a VM more of the host or of the network than another.
	beyond   beyond
	harmless bool
}

// InConfig reports whether Set works: the setting is one of vm.Config's and its texts are all that it needs.
func (s Setting) InConfig() bool { return s.In != nil || s.set != nil }

// Set sets the setting's place in c to what its flag was given: any number of texts for a list, else one. Errors name the flag.
func (s Setting) Set(c *vm.Config, texts []string) error {
	if s.In != nil {
		*s.In(c) = texts[0] == "true"
		return nil
	}
	return s.set(s, c, texts)
}

// size sets a number of bytes; none is given by "" where there is no default.
func size(in func(c *vm.Config, bytes uint64)) func(Setting, *vm.Config, []string) error {
	return func(s Setting, c *vm.Config, texts []string) error {
		if texts[0] == "" && s.Default == "" {
			return nil
		}
		n, err := ParseSize(texts[0], 20)
		if err != nil || n == 0 || n > math.MaxInt64 {
			return fmt.Errorf("--%s %q: want a size as 768M or 2G", s.Flag, texts[0])
		}
		in(c, n)
		return nil
	}
}

// ranges sets a list of ranges of ports.
func ranges(in func(*vm.Config) *[]vm.PortRange) func(Setting, *vm.Config, []string) error {
	return func(s Setting, c *vm.Config, texts []string) error {
		*in(c) = nil
		for _, text := range texts {
			var r vm.PortRange
			if err := r.UnmarshalText([]byte(text)); err != nil {
				return fmt.Errorf("--%s: %w", s.Flag, err)
			}
			*in(c) = append(*in(c), r)
		}
		return nil
	}
}

func setExempt(s Setting, c *vm.Config, texts []string) error {
	c.Access.LoopbackExemptPorts = nil
	for _, text := range texts {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("--%s %q: want a port from 1 to 65535", s.Flag, text)
		}
		c.Access.LoopbackExemptPorts = append(c.Access.LoopbackExemptPorts, uint16(port))
	}
	return nil
}

func setSubnet(s Setting, c *vm.Config, texts []string) error {
	if c.Network.Subnet = (netip.Prefix{}); texts[0] == "" {
		return nil
	}
	p, err := netip.ParsePrefix(texts[0])
	if err != nil || p != p.Masked() {
		return fmt.Errorf("--%s %q: want a network as 10.9.0.0/24", s.Flag, texts[0])
	}
	c.Network.Subnet, c.Network.Address = p, netip.Addr{} // --ip, which follows, names one in it
	return nil
}

func setAddress(s Setting, c *vm.Config, texts []string) (err error) {
	if c.Network.Address = (netip.Addr{}); texts[0] == "" {
		return nil
	}
	if c.Network.Address, err = netip.ParseAddr(texts[0]); err != nil {
		return fmt.Errorf("--%s %q: want an address as 10.9.0.2", s.Flag, texts[0])
	}
	return nil
}

func setSockets(_ Setting, c *vm.Config, texts []string) error {
	c.UnixSockets = nil
	for _, text := range texts {
		socket, err := vm.ParseUnixSocket(text)
		if err != nil {
			return err
		}
		c.UnixSockets = append(c.UnixSockets, socket)
	}
	return nil
}

func setSecrets(_ Setting, c *vm.Config, texts []string) error {
	c.Secrets = nil
	for _, text := range texts {
		s, err := vm.ParseSecret(text)
		if err != nil {
			return err
		}
		if path, isFile := strings.CutPrefix(s.Source, "file:"); isFile { // a daemon has another working directory
			if path, err = filepath.Abs(path); err != nil {
				return err
			}
			s.Source = "file:" + path
		}
		c.Secrets = append(c.Secrets, s)
	}
	return nil
}

// Kind is what the value of a setting looks like in a project file.
type Kind int

// Kinds.
const (
	Text     Kind = iota
	Texts         // a list
	Path          // a file of the host, made absolute
	Paths         // a list of texts that begin with a path of the host, made absolute
	Size          // bytes, as 1G
	Duration      // as time.ParseDuration reads it
	Ports         // a list of numbers from 1 to 65535
	Seconds       // a number from 1 to a day
	Switch        // true or false
)

// All returns all settings except the sidecars, in the order in which they are shown.
func All() []Setting {
	return []Setting{
		{
			Key: "image", Flag: "image", Fresh: true, set: func(_ Setting, c *vm.Config, texts []string) error { c.Image = texts[0]; return nil },
			Usage: "image to boot: one of agentvm image ls, alpine:VERSION, busybox, NAME:TAG of a registry, or an archive; see agentvm image --help (default alpine)",
		},
		{
			Key: "memory", Flag: "memory", Kind: Size, Fresh: true, set: size(func(c *vm.Config, n uint64) { c.Memory = n }),
			beyond: larger("512M", bytesOf),
			Usage:  "memory of the VM, as 768M or 2G", Default: "512M",
		},
		{
			Key: "cold", Flag: "cold", Kind: Switch, Fresh: true, In: func(c *vm.Config) *bool { return &c.ColdBoot },
			harmless: true,
			Usage:    "boot the VM, even when it could start from a saved one that has just booted, or is hibernated",
		},
		{
			Key: "host-memory", Flag: "host-memory", Kind: Size, set: size(func(c *vm.Config, n uint64) { c.HostMemory = int64(n) }),
			beyond: larger("256M", bytesOf),
			Usage:  "memory of the host that the VM may take besides its own, for connections, unread output and open files of mounts, as 64M or 1G (default 256M)",
		},
		{Key: "mounts", Flag: "mount", Kind: Paths, beyond: widerMounts}, // host[:guest][:ro]
		{Key: "masks", Kind: Texts, beyond: unmasked},                    // paths below the file's directory, hidden in every mount
		{Key: "env", Flag: "env", Kind: Texts, beyond: added},            // KEY=VALUE, or KEY
		{Key: "ports", Flag: "publish", Kind: Texts, beyond: addedPorts},
		{Key: "ca-cert", Flag: "ca-cert", Kind: Path},
		{
			Key: "no-new-privileges", Flag: "no-new-privileges", Kind: Switch, In: func(c *vm.Config) *bool { return &c.NoNewPrivileges },
			beyond: switchedOff,
			Usage:  "have set-user-ID programs give nothing in the guest: who is not root there does not become it",
		},
		{
			Key: "read-only-root", Flag: "read-only-root", Kind: Switch, In: func(c *vm.Config) *bool { return &c.ReadOnlyRoot },
			beyond: switchedOff,
			Usage:  "let no program change the VM's own files; mounts, /tmp, /run and /dev/shm stay writable",
		},
		{
			Key: "sockets", Flag: "socket", Kind: Paths, set: setSockets,
			beyond: added,
			Usage:  "let the VM connect to a Unix socket of the host: `HOST[:GUEST][:MODE]`, paths and permissions in octal (guest default: the same path, mode 0666; may be repeated)",
		},
		{
			Key: "secrets", Flag: "secret", Kind: Texts, set: setSecrets,
			beyond: added,
			Usage:  "let programs use a credential that the VM never has: `NAME=env:VARIABLE,hosts=HOST` or NAME=file:PATH,hosts=HOST; see docs/guide/secrets.md (may be repeated)",
		},
		{Key: "idle-timeout", Flag: "idle-timeout", Kind: Duration, beyond: larger(noLimit, timeOf)},
		{Key: "hibernate-after", Flag: "hibernate-after", Kind: Duration, beyond: larger(noLimit, timeOf)},
		{Key: "max-lifetime", Flag: "max-lifetime", Kind: Duration, beyond: larger(noLimit, timeOf)},
		{Key: "disk-size", Flag: "disk-size", Kind: Size, beyond: larger("10G", bytesOf)},

		{Key: "network.mode", Flag: "net", beyond: widerPolicy}, // public, allowlist, none or open
		{Key: "network.allow", Flag: "allow", Kind: Texts, beyond: withMode},
		{Key: "network.allow-sni", Flag: "allow-sni", Kind: Texts, beyond: withMode},
		{Key: "network.deny", Flag: "deny", Kind: Texts, beyond: withMode},
		{Key: "network.host-ports", Flag: "host-port", Kind: Ports, beyond: added},
		{Key: "network.join", Flag: "network", Kind: Texts, beyond: added},   // networks of VMs
		{Key: "network.hosts", Flag: "add-host", Kind: Texts, beyond: added}, // NAME:IP
		{
			Key: "network.subnet", Flag: "subnet", set: setSubnet,
			Usage: "IPv4 network of the VM, as `10.9.0.0/24`: private addresses, at least a /29; the gateway has its first address (default 192.168.127.0/24)",
		},
		{
			Key: "network.ip", Flag: "ip", set: setAddress,
			Usage: "the VM's own `ADDRESS` in its network (default the third, 192.168.127.3)",
		},
		{
			Key: "network.mac", Flag: "mac", set: func(_ Setting, c *vm.Config, texts []string) error { c.Network.MAC = texts[0]; return nil },
			harmless: true,
			Usage:    "the `MAC` of the VM's network card, which forks and restored VMs keep (default 02:00:00:00:00:01, and for those a random one)",
		},

		{
			Key: "access.listen-allow", Flag: "listen-allow", Kind: Texts, set: ranges(func(c *vm.Config) *[]vm.PortRange { return &c.Access.Listen.Allow }),
			beyond: addedRanges,
			Usage:  "let programs of the VM listen only at the ports of a `RANGE`, as 8080 or 3000-3999 (may be repeated)",
		},
		{
			Key: "access.listen-deny", Flag: "listen-deny", Kind: Texts, set: ranges(func(c *vm.Config) *[]vm.PortRange { return &c.Access.Listen.Deny }),
			beyond: removedRanges,
			Usage:  "never let them listen at the ports of a `RANGE`, whatever is allowed (may be repeated)",
		},
		{
			Key: "access.connect-allow", Flag: "connect-allow", Kind: Texts, set: ranges(func(c *vm.Config) *[]vm.PortRange { return &c.Access.Connect.Allow }),
			beyond: addedRanges,
			Usage:  "let connections lead only to the ports of a `RANGE`: those from the VM to wherever the network policy lets them, and those from the host to the VM (may be repeated)",
		},
		{
			Key: "access.connect-deny", Flag: "connect-deny", Kind: Texts, set: ranges(func(c *vm.Config) *[]vm.PortRange { return &c.Access.Connect.Deny }),
			beyond: removedRanges,
			Usage:  "never let connections lead to the ports of a `RANGE`, whatever is allowed (may be repeated)",
		},
		{
			Key: "access.loopback-exempt-ports", Flag: "loopback-exempt", Kind: Ports, set: setExempt,
			beyond: added,
			Usage:  "let others than this VM's owner reach a `PORT` of the VM's loopback; -p does that for its port (may be repeated)",
		},

		{Key: "preview.max-expires-in-seconds", Kind: Seconds, beyond: larger(strconv.Itoa(maxSeconds), secondsOf)}, // the longest lifetime of a link to a server in the VM
	}
}

// Switches returns the settings that are true or false and that a VM keeps when it continues from a snapshot.
func Switches() []Setting {
	return slices.DeleteFunc(All(), func(s Setting) bool { return s.Kind != Switch || s.Fresh })
}

// ParseSize reads a number with a unit K, M or G, which are powers of 1024. A number alone is shifted left by bare.
func ParseSize(text string, bare int) (uint64, error) {
	digits := strings.TrimRight(strings.ToUpper(text), "KMGIB")
	unit := strings.ToUpper(text)[len(digits):]
	n, err := strconv.ParseUint(digits, 10, 64)
	shift, known := map[string]int{
		"": bare, "K": 10, "KB": 10, "KIB": 10, "M": 20, "MB": 20, "MIB": 20, "G": 30, "GB": 30, "GIB": 30,
	}[unit]
	if err != nil || !known || n > math.MaxUint64>>shift {
		return 0, errors.New("not a size")
	}
	return n << shift, nil
}

// maxSeconds is the most that a setting of kind Seconds can be: a day.
const maxSeconds = 24 * 60 * 60

// sizes matches a number of bytes with a unit, which are powers of 1024.
var sizes = sync.OnceValue(func() *regexp.Regexp { // not at each start of agentvm
	return regexp.MustCompile(`^[0-9]{1,15}([KkMmGg]([Ii]?[Bb])?)?$`)
})

// IsList reports whether the value is written in brackets.
func (k Kind) IsList() bool { return k == Texts || k == Paths || k == Ports }

// values returns what a file has for the setting as the texts that its flag takes.
func (s Setting) values(f *File, v any) (list []string, err error) {
	if !s.Kind.IsList() {
		text, err := s.one(f, v)
		return []string{text}, err
	}
	items, ok := v.([]any)
	if !ok && s.Kind == Ports {
		return nil, f.Errorf(s.Key, -1, "%s is a list of numbers, in brackets", s.Key)
	}
	if !ok {
		return nil, f.Errorf(s.Key, -1, "%s is a list of texts, in brackets", s.Key)
	}
	for i, item := range items {
		text, ok := plainText(item)
		if s.Kind == Ports {
			text, ok = number(item, 65535)
		}
		switch {
		case !ok && s.Kind == Ports:
			return nil, f.Errorf(s.Key, i, "each of %s is a port from 1 to 65535", s.Key)
		case !ok:
			return nil, f.Errorf(s.Key, i, "each of %s is a text, in quotes", s.Key)
		case s.Key == "env" && text[0] == '=':
			return nil, f.Errorf(s.Key, i, "env %q: want KEY=VALUE or KEY", text)
		case s.Kind == Paths:
			text = f.absolute(text)
		}
		list = append(list, text)
	}
	return list, nil
}

// one reads a value that is no list.
func (s Setting) one(f *File, v any) (string, error) {
	switch s.Kind {
	case Switch:
		on, ok := v.(bool)
		if !ok {
			return "", f.Errorf(s.Key, -1, "%s is true or false", s.Key)
		}
		return strconv.FormatBool(on), nil
	case Seconds:
		text, ok := number(v, maxSeconds)
		if !ok {
			return "", f.Errorf(s.Key, -1, "%s is a number from 1 to %d", s.Key, maxSeconds)
		}
		return text, nil
	}
	text, ok := plainText(v)
	if !ok {
		return "", f.Errorf(s.Key, -1, "%s is a text, in quotes", s.Key)
	}
	switch s.Kind {
	case Size:
		if !sizes().MatchString(text) {
			return "", f.Errorf(s.Key, -1, "%s %q: want a size as 768M or 2G", s.Key, text)
		}
	case Duration:
		if d, err := time.ParseDuration(text); err != nil || d < 0 {
			return "", f.Errorf(s.Key, -1, "%s %q: want a time as 90s, 10m or 2h", s.Key, text)
		}
	case Path:
		text = f.absolutePath(text)
	}
	if s.Key == "network.mode" && !slices.Contains([]string{"public", "allowlist", "none", "open"}, text) {
		return "", f.Errorf(s.Key, -1, "network.mode %q: want public, allowlist, none or open", text)
	}
	return text, nil
}

// plainText is a text that is not empty.
func plainText(v any) (string, bool) {
	text, ok := v.(string)
	return text, ok && text != "" && !strings.ContainsRune(text, 0)
}

func number(v any, most int64) (string, bool) {
	n, ok := v.(int64)
	return fmt.Sprint(n), ok && n >= 1 && n <= most
}

// typed returns the texts of a setting as TOML and JSON write it.
func (s Setting) typed(list []string) any {
	numbers := make([]int, len(list))
	for i, text := range list {
		numbers[i], _ = strconv.Atoi(text) // only where they are numbers
	}
	switch s.Kind {
	case Switch:
		return list[0] == "true"
	case Seconds:
		return numbers[0]
	case Ports:
		return numbers
	case Texts, Paths:
		return list
	}
	return list[0]
}
