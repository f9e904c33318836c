package settings

import (
	"net/netip"
	"sync"

	"agentvm/egress"
	"agentvm/internal/share/mount"
	"agentvm/nat"
	"agentvm/vm"
)

// Kind is what the value of a setting looks like.
type Kind int

// Kinds.
const (
	Text     Kind = iota // not empty
	Texts                // a list of texts, none of them empty
	Paths                // a list of paths of the host, each with what belongs to it after a colon; the paths are made absolute
	Path                 // of the host, made absolute
	Size                 // bytes, as 1G
	Rate                 // bytes a second, as 1M
	Duration             // as time.ParseDuration reads it
	Ports                // a list of numbers from 1 to 65535
	Number               // in the setting's Range
	Switch               // true or false
	Pairs                // KEY=VALUE, each KEY once
)

// All returns all settings except the sidecars, in the order in which they are shown. Callers do not change them.
func All() []Setting { return table() }

// table is made once: commands ask for it ten times, and the half of it is made of functions.
var table = sync.OnceValue(func() []Setting {
	return []Setting{
		{
			Key: "image", Flag: "image", JSON: "image", Fresh: true, in: func(c Config) any { return &c.Image },
			Usage: "image to boot: one of agentvm image ls, alpine:VERSION, busybox, NAME:TAG of a registry, or an archive; see agentvm image --help (default alpine)",
		},
		{
			Key: "platform", Flag: "platform", JSON: "platform", Fresh: true, in: func(c Config) any { return &c.Platform },
			Usage: "platform of the VM and its image: linux/riscv64 or linux/arm64 (default: what the image is for, riscv64 when it is for both)",
		},
		{
			Key: "memory", Flag: "memory", JSON: "memory", Kind: Size, Fresh: true, in: func(c Config) any { return &c.Memory },
			beyond: larger("512M", bytesOf),
			Usage:  "memory of the VM, such as 768M or 2G", Default: "512M",
		},
		{
			Key: "cpus", Flag: "cpus", JSON: "cpus", Kind: Number, Fresh: true, in: func(c Config) any { return &c.CPUs },
			beyond: largerNumber(1),
			Usage:  "processors of the VM, 1 to 8; several exist on linux/arm64 alone", Default: "1",
		},
		{
			Key: "cold", Flag: "cold", Kind: Switch, Fresh: true, in: func(c Config) any { return &c.ColdBoot },
			harmless: true,
			Usage:    "boot the VM, even when it could start from a saved one that has just booted, or is hibernated",
		},
		{
			Key: "host-memory", Flag: "host-memory", Kind: Size, in: func(c Config) any { return &c.HostMemory },
			beyond: larger("256M", bytesOf), more: "more than 256 MiB of the host's memory besides the VM's own",
			Usage: "memory of the host that the VM may take besides its own, for connections, unread output and open files of mounts, such as 64M or 1G (default 256M)",
		},
		{
			Key: "mounts", Flag: "mount", Kind: Paths, set: each(func(c Config) *[]vm.Mount { return &c.Mounts }, mount.Parse, ""),
			beyond: widerMounts,
		},
		{Key: "masks", Kind: Texts, beyond: unmasked}, // paths below the file's directory, hidden in every mount
		{
			Key: "env", Flag: "env", JSON: "env", Kind: Texts, in: func(c Config) any { return &c.Env }, set: setEnv,
			beyond: added,
		},
		{
			Key: "ports", Flag: "publish", Kind: Texts, Part: OfNetwork, set: several(func(c Config) *[]nat.Forward { return &c.Network.Forwards }, nat.ParseForwards, ": %w"),
			beyond: addedPorts,
			Usage:  "lead a port of the host into the VM, as `PORT:GUESTPORT` or ADDRESS:PORT:GUESTPORT, with /udp for UDP, or ranges, such as 8000-8009:9000-9009; on 127.0.0.1 by default; PORT:localhost:GUESTPORT leads to a server that listens at 127.0.0.1 of the VM only (may be repeated)", Short: "p",
		},
		{
			Key: "ca-cert", Flag: "ca-cert", Kind: Path, in: func(c Config) any { return c.CAFile },
			Usage: "have the guest trust the certificates of this PEM `FILE` as well",
		},
		{
			Key: "no-new-privileges", Flag: "no-new-privileges", Kind: Switch, in: func(c Config) any { return &c.NoNewPrivileges },
			beyond: switchedOff,
			Usage:  "let no program of the guest gain rights by a set-user-ID bit: users other than root stay what they are",
		},
		{
			Key: "read-only-root", Flag: "read-only-root", JSON: "readOnlyRoot", Kind: Switch, in: func(c Config) any { return &c.ReadOnlyRoot },
			beyond: switchedOff,
			Usage:  "let no program change the VM's own files; mounts, /tmp, /run and /dev/shm stay writable",
		},
		{
			Key: "sockets", Flag: "socket", Kind: Paths, set: each(func(c Config) *[]vm.UnixSocket { return &c.UnixSockets }, vm.ParseUnixSocket, ""),
			beyond: added,
			Usage:  "let the VM connect to a Unix socket of the host: `HOST[:GUEST][:MODE]`, paths and permissions in octal (guest default: the same path, mode 0666; may be repeated)",
		},
		{
			Key: "secrets", Flag: "secret", Kind: Texts, set: each(func(c Config) *[]vm.Secret { return &c.Secrets }, parseSecret, ""),
			beyond: added,
			Usage:  "let programs use a credential that the VM never has: `NAME=env:VARIABLE,hosts=HOST` or NAME=file:PATH,hosts=HOST; see docs/guide/secrets.md (may be repeated)",
		},

		{
			Key: "hostname", Flag: "hostname", Part: OfDaemon, FlagOnly: true, in: func(c Config) any { return &c.Hostname },
			Usage: "the guest's host name (default: NAME)",
		},
		{
			Key: "idle-timeout", Flag: "idle-timeout", JSON: "idleSeconds", Kind: Duration, Part: OfDaemon, in: func(c Config) any { return c.IdleTimeout },
			beyond: larger(noLimit, timeOf),
			Usage:  "stop the VM when no client has been connected and nothing has run in it for this time, such as 10m (default never)",
		},
		{
			Key: "hibernate-after", Flag: "hibernate-after", Kind: Duration, Part: OfDaemon, in: func(c Config) any { return c.HibernateAfter },
			beyond: larger(noLimit, timeOf),
			Usage:  "save the VM, and end its process, when it has not been used for this time, such as 10m, until a command uses it again or a connection to its ports comes; UDP ports keep it awake (default never)",
		},
		{
			Key: "max-lifetime", Flag: "max-lifetime", JSON: "lifeSeconds", Kind: Duration, Part: OfDaemon, in: func(c Config) any { return c.MaxLifetime },
			beyond: larger(noLimit, timeOf),
			Usage:  "stop the VM this long after its start, such as 2h (default never)",
		},
		{
			Key: "restart", Flag: "restart", Part: OfDaemon, FlagOnly: true, set: setRestart,
			Usage: "start the VM again when it has ended by itself: `POLICY` always, on-failure or no (default no)",
		},
		{
			Key: "metrics", Flag: "metrics", Part: OfDaemon, FlagOnly: true, in: func(c Config) any { return c.Metrics },
			Usage: "serve counters for Prometheus on `ADDRESS:PORT` of this host's loopback, such as 127.0.0.1:9100; port 0 takes one that agentvm inspect shows (default not at all)",
		},
		{
			Key: "labels", Flag: "label", JSON: "labels", Kind: Pairs, Part: OfDaemon, FlagOnly: true, in: func(c Config) any { return c.Labels },
			Usage: "note `KEY=VALUE` about the VM, for agentvm inspect (may be repeated)",
		},
		{
			Key: "disk-size", Flag: "disk-size", JSON: "diskSize", Kind: Size, Part: OfDaemon, Fresh: true, in: func(c Config) any { return c.DiskSize }, set: setDiskSize,
			beyond: larger("10G", bytesOf),
			Usage:  "size of the disk that keeps the VM's files, when it is made, such as 2G; it takes no more than what is used; 0: no disk, nothing is kept (default 10G)",
		},

		// One of these flags replaces the whole policy, of which --policy reads a part.
		{Key: "network.mode", Flag: "net", Part: OfNetwork, beyond: widerPolicy}, // public, allowlist, none or open
		{
			Key: "network.allow", Flag: "allow", Kind: Texts, Part: OfNetwork, beyond: withMode,
			Usage: "let the VM reach what a `RULE` names: HOST[:PORTS[/tcp|udp|icmp]], where HOST is a name, *.suffix, an address or a network, as pypi.org:443 (may be repeated)",
		},
		{
			Key: "network.allow-sni", Flag: "allow-sni", Kind: Texts, Part: OfNetwork, beyond: withMode,
			Usage: "let the VM reach the names of a `RULE` by TLS or HTTP only, and check in each connection that it names one of them, so that other servers at the same addresses stay closed (may be repeated)",
		},
		{
			Key: "network.allow-private", Flag: "allow-private", Kind: Texts, Part: OfNetwork, beyond: withMode,
			Usage: "let the VM reach what a `RULE` names of private networks, besides what the mode lets it, as 10.1.0.0/16:5432, except for the host itself and cloud metadata (may be repeated)",
		},
		{
			Key: "network.deny", Flag: "deny", Kind: Texts, Part: OfNetwork, beyond: withMode,
			Usage: "never let it reach what a `RULE` names, whatever is allowed (may be repeated)",
		},
		{Key: "network.host-ports", Flag: "host-port", Kind: Ports, Part: OfNetwork, beyond: added},

		{
			Key: "network.dns", Flag: "dns", Kind: Texts, Part: OfNetwork, FlagOnly: true, set: each(func(c Config) *[]netip.AddrPort { return &c.Network.Resolvers }, parseResolver, " %w"),
			Usage: "ask the DNS server `IP[:PORT]` instead of the host's (may be repeated)",
		},
		{
			Key: "network.dns-search", Flag: "dns-search", Kind: Texts, Part: OfNetwork, FlagOnly: true, Portable: true, in: func(c Config) any { return &c.Network.Search },
			Usage: "complete short names with this `DOMAIN` (may be repeated)",
		},
		{ // before network.join, which can say the same
			Key: "network.disabled", Flag: "no-network", Kind: Switch, Part: OfNetwork, FlagOnly: true, Portable: true, in: func(c Config) any { return &c.Network.Disabled },
			Usage: "give the VM no network card at all",
		},
		{
			Key: "network.join", Flag: "network", Kind: Texts, Part: OfNetwork, set: setNetworks,
			beyond: added,
			Usage:  "join the network of VMs of this `NAME`, in which VMs reach each other by name; see agentvm network; none: as --no-network (may be repeated)",
		},
		{
			Key: "network.hosts", Flag: "add-host", Kind: Texts, Part: OfNetwork, set: each(func(c Config) *[]egress.Host { return &c.Network.Hosts }, egress.ParseHost, " %w"),
			beyond: added,
			Usage:  "give a name an address in the VM, as `NAME:IP` or NAME:host-gateway, where --host-port opens ports; this opens nothing (may be repeated)",
		},
		{
			Key: "network.proxy", Flag: "proxy", Part: OfNetwork, FlagOnly: true, set: setProxy,
			Usage: "make the VM's TCP connections through the proxy `URL` of the host, http://, https:// or socks5://HOST:PORT, or that in env:VARIABLE or file:PATH, where a password belongs; UDP does not pass",
		},
		{
			Key: "network.capture", Flag: "pcap", Kind: Path, Part: OfNetwork, FlagOnly: true, in: func(c Config) any { return c.CaptureFile },
			Usage: "write every Ethernet frame of the VM to a `FILE` for Wireshark",
		},
		{
			Key: "network.log", Flag: "net-log", Kind: Path, Part: OfNetwork, FlagOnly: true, in: func(c Config) any { return c.NetworkLog },
			Usage: "append every connection, DNS query and denial to a `FILE`, a line of JSON each (see agentvm net log)",
		},
		{
			Key: "network.subnet", Flag: "subnet", Part: OfNetwork, Portable: true, in: func(c Config) any { return &c.Network.Subnet }, set: setSubnet,
			Usage: "IPv4 network of the VM, such as `10.9.0.0/24`: private addresses, at least a /29; the gateway has its first address (default 192.168.127.0/24)",
		},
		{
			Key: "network.ip", Flag: "ip", Part: OfNetwork, Portable: true, in: func(c Config) any { return &c.Network.Address }, set: setAddress,
			Usage: "the VM's own `ADDRESS` in its network (default the third, 192.168.127.3)",
		},
		{
			Key: "network.mac", Flag: "mac", Part: OfNetwork, Portable: true, in: func(c Config) any { return &c.Network.MAC },
			harmless: true,
			Usage:    "the `MAC` of the VM's network card, which forks and restored VMs keep (default 02:00:00:00:00:01, and for those a random one)",
		},
		{
			Key: "network.mtu", Flag: "mtu", Kind: Number, Part: OfNetwork, FlagOnly: true, Portable: true, in: func(c Config) any { return &c.Network.MTU },
			Usage: "largest IP packet in `BYTES` (default 1500)",
		},
		{
			Key: "network.no-ipv6", Flag: "no-ipv6", Kind: Switch, Part: OfNetwork, FlagOnly: true, Portable: true, in: func(c Config) any { return &c.Network.DisableIPv6 },
			Usage: "give the VM IPv4 only",
		},
		{
			Key: "network.send-limit", Flag: "send-limit", Kind: Rate, Part: OfNetwork, FlagOnly: true, Portable: true, in: func(c Config) any { return &c.Network.SendLimit },
			Usage: "bytes a second (`RATE`) that the VM may send, such as 500K or 10M (default none)",
		},
		{
			Key: "network.receive-limit", Flag: "receive-limit", Kind: Rate, Part: OfNetwork, FlagOnly: true, Portable: true, in: func(c Config) any { return &c.Network.ReceiveLimit },
			Usage: "bytes a second (`RATE`) that the VM may receive, such as 500K or 10M (default none)",
		},
		{
			Key: "network.max-connections", Flag: "max-connections", JSON: "maxConnections", Kind: Number, Range: [2]int{0, 65535}, Part: OfNetwork, in: func(c Config) any { return &c.Network.Limits.TCPFlows },
			beyond: largerNumber(1024), more: "more than 1024 connections at once",
			Usage: "how many TCP connections the VM may have open at once, a `NUMBER` to 65535; more are refused until some end (default 1024)",
		},

		{
			Key: "access.listen-allow", Flag: "listen-allow", Kind: Texts, Part: OfAccess, set: each(func(c Config) *[]vm.PortRange { return &c.Access.Listen.Allow }, parseRange, ": %w"),
			beyond: addedRanges,
			Usage:  "let programs of the VM listen only at the ports of a `RANGE`, such as 8080 or 3000-3999 (may be repeated)",
		},
		{
			Key: "access.listen-deny", Flag: "listen-deny", Kind: Texts, Part: OfAccess, set: each(func(c Config) *[]vm.PortRange { return &c.Access.Listen.Deny }, parseRange, ": %w"),
			beyond: removedRanges,
			Usage:  "never let them listen at the ports of a `RANGE`, whatever is allowed (may be repeated)",
		},
		{
			Key: "access.connect-allow", Flag: "connect-allow", Kind: Texts, Part: OfAccess, set: each(func(c Config) *[]vm.PortRange { return &c.Access.Connect.Allow }, parseRange, ": %w"),
			beyond: addedRanges,
			Usage:  "let connections lead only to the ports of a `RANGE`: those from the VM to wherever the network policy lets them, and those from the host to the VM (may be repeated)",
		},
		{
			Key: "access.connect-deny", Flag: "connect-deny", Kind: Texts, Part: OfAccess, set: each(func(c Config) *[]vm.PortRange { return &c.Access.Connect.Deny }, parseRange, ": %w"),
			beyond: removedRanges,
			Usage:  "never let connections lead to the ports of a `RANGE`, whatever is allowed (may be repeated)",
		},
		{
			Key: "access.loopback-exempt-ports", Flag: "loopback-exempt", Kind: Ports, Part: OfAccess, in: func(c Config) any { return &c.Access.LoopbackExemptPorts },
			beyond: added,
			Usage:  "let others than this VM's owner reach a `PORT` of the VM's loopback; -p does that for its port (may be repeated)",
		},

		{Key: "preview.max-expires-in-seconds", Kind: Number, Range: [2]int{1, maxSeconds}, Part: OfDaemon, beyond: largerNumber(maxSeconds)}, // the longest lifetime of a link to a server in the VM
	}
})
