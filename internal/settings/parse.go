package settings

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/storage/disk"
	"agentvm/vm"
)

const maxInt64 = math.MaxInt64

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

// parseRate reads bytes a second; nothing is 0.
func parseRate(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := ParseSize(strings.TrimSuffix(text, "/s"), 0)
	if err == nil && (n == 0 || n > 1<<40) {
		err = errors.New("not a rate")
	}
	return int64(n), err
}

// ParseDuration reads a length of time, as 90s or 5m. A number alone means seconds, as docker and kubectl have it.
func ParseDuration(text string) (time.Duration, error) {
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("want a positive time, as 90s or 5m")
	}
	return d, nil
}

// Environment completes KEY by this process's value; a KEY that is not set here is left out.
func Environment(list []string) ([]string, error) {
	var env []string
	for _, kv := range list {
		key, _, found := strings.Cut(kv, "=")
		if key == "" {
			return nil, fmt.Errorf("--env %q: want KEY=VALUE or KEY", kv)
		}
		if found {
			env = append(env, kv)
		} else if value, set := os.LookupEnv(key); set {
			env = append(env, key+"="+value)
		}
	}
	return env, nil
}

func setEnv(_ Setting, c Config, texts []string) (err error) {
	c.Env, err = Environment(texts)
	return err
}

// each sets a list of what parse reads. Where form is not "", errors begin with the flag, and end as it says.
func each[T any](in func(Config) *[]T, parse func(text string) (T, error), form string) func(Setting, Config, []string) error {
	some := func(text string) ([]T, error) {
		one, err := parse(text)
		return []T{one}, err
	}
	return several(in, some, form)
}

// several is each where a text can mean several elements.
func several[T any](in func(Config) *[]T, parse func(text string) ([]T, error), form string) func(Setting, Config, []string) error {
	return func(s Setting, c Config, texts []string) error {
		var list []T
		for _, text := range texts {
			some, err := parse(text)
			if err != nil && form != "" {
				err = s.errorf(form, err)
			}
			if err != nil {
				return err
			}
			list = append(list, some...)
		}
		*in(c) = list
		return nil
	}
}

func parseRange(text string) (r vm.PortRange, err error) {
	err = r.UnmarshalText([]byte(text))
	return r, err
}

// parseResolver reads IP[:PORT], with an IPv6 address in brackets when there is a port.
func parseResolver(text string) (netip.AddrPort, error) {
	if server, err := netip.ParseAddrPort(text); err == nil && server.Port() != 0 {
		return server, nil
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q: want an address as 9.9.9.9, 127.0.0.1:5353 or [2620:fe::fe]:53", text)
	}
	return netip.AddrPortFrom(address, 53), nil
}

func parseSecret(text string) (vm.Secret, error) {
	secret, err := vm.ParseSecret(text)
	if path, isFile := strings.CutPrefix(secret.Source, "file:"); isFile && err == nil { // a daemon has another working directory
		path, err = filepath.Abs(path)
		secret.Source = "file:" + path
	}
	return secret, err
}

func setSubnet(s Setting, c Config, texts []string) error {
	c.Network.Subnet, c.Network.Address = netip.Prefix{}, netip.Addr{} // --ip, which follows, names one in it
	if texts[0] == "" {
		return nil
	}
	p, err := netip.ParsePrefix(texts[0])
	if err != nil || p != p.Masked() {
		return s.errorf(" %q: want a network as 10.9.0.0/24", texts[0])
	}
	c.Network.Subnet = p
	return nil
}

func setAddress(s Setting, c Config, texts []string) (err error) {
	if c.Network.Address = (netip.Addr{}); texts[0] == "" {
		return nil
	}
	if c.Network.Address, err = netip.ParseAddr(texts[0]); err != nil {
		return s.errorf(" %q: want an address as 10.9.0.2", texts[0])
	}
	return nil
}

// NoNetwork is what --network takes for no network, as docker run does.
const NoNetwork = "none"

// setNetworks reads the networks of VMs to join; NoNetwork leaves the card out.
func setNetworks(_ Setting, c Config, texts []string) error {
	c.Network.Networks = nil
	for _, name := range texts {
		switch name {
		case NoNetwork:
			c.Network.Disabled = true
		case "host":
			return errors.New("--network host: a VM has a network of its own: --host-port PORT opens a port of this host's loopback to it, -p PORT:GUESTPORT leads from the host to the VM, --net open lets it reach private networks")
		case "bridge", "default":
			return fmt.Errorf("--network %s: each VM has a network that reaches public addresses: leave the flag out; --network NAME joins a network of agentvm network create", name)
		default:
			c.Network.Networks = append(c.Network.Networks, name)
		}
	}
	return nil
}

func setProxy(_ Setting, c Config, texts []string) (err error) {
	c.Network.Proxy, err = parseProxy(texts[0])
	return err
}

// parseProxy reads --proxy. Other users see command lines, so that a password is not for them.
func parseProxy(text string) (string, error) {
	if path, file := strings.CutPrefix(text, "file:"); file && path != "" {
		path, err := filepath.Abs(path) // the daemon has another working directory
		return "file:" + path, err
	}
	if u, err := url.Parse(text); err == nil && u.User != nil {
		if _, password := u.User.Password(); password {
			return "", errors.New("--proxy: a password does not belong on a command line, where other users see it: put the URL into a file or a variable, and give --proxy file:PATH or env:VARIABLE")
		}
	}
	return text, nil
}

func setDiskSize(s Setting, c Config, texts []string) error {
	if c.DiskSize == nil {
		return nil
	}
	size, err := ParseSize(texts[0], 20)
	if err != nil || size > disk.MaxSize || size != 0 && size < disk.MinSize {
		return s.errorf(" %q: want a size from %dM to %dG, as 500M or 20G, or 0", texts[0], disk.MinSize>>20, disk.MaxSize>>30)
	}
	if *c.DiskSize = int64(size); size == 0 {
		*c.DiskSize = -1
	}
	return nil
}

func setRestart(s Setting, c Config, texts []string) error {
	if c.Restart == nil {
		return nil
	}
	switch texts[0] {
	case "no", "never":
		*c.Restart = ""
	case "always", "on-failure":
		*c.Restart = texts[0]
	default:
		return s.errorf(" %q: want always, on-failure or no", texts[0])
	}
	return nil
}
