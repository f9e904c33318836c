package main

import (
	"net/netip"
	"path/filepath"
	"strings"

	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/internal/share/mount"
	"agentvm/nat"
	"agentvm/vm"
)

// checkProject checks the values that package settings does not know, with their places. A file comes with what was cloned, and a guest
// with a writable mount can change it. So, unless it is trusted, it cannot give more of the host than its own directory.
func checkProject(file *settings.File, trusted bool) error {
	p := projectCheck{file, trusted}
	for _, check := range []func() error{p.amounts, p.mounts, p.env, p.masks, p.ports, p.access, p.network, p.certificate, p.sockets, p.secrets} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

type projectCheck struct {
	*settings.File
	trusted bool
}

// requireTrust returns an error about a value of the file that needs trust, unless the file is trusted.
func (p projectCheck) requireTrust(key string, item int, what string) error {
	if p.trusted {
		return nil
	}
	return p.Errorf(key, item, "%s: a project file cannot give that by itself: --trust-project lets it, --no-project leaves it out", what)
}

// amounts checks the settings of which more than the default needs trust.
func (p projectCheck) amounts() error {
	for _, s := range settings.All() {
		if what := s.NeedsTrust(p.File); what != "" {
			if err := p.requireTrust(s.Key, -1, what); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p projectCheck) mounts() error {
	dir := realPath(filepath.Dir(p.Path))
	for i, text := range p.Values["mounts"] {
		spec, err := mount.Parse(text)
		if err != nil {
			return p.Errorf("mounts", i, "%w", err)
		}
		if len(spec.Unprotected) > 0 {
			if err := p.requireTrust("mounts", i, "changing what the host's programs execute by themselves (unprotected)"); err != nil {
				return err
			}
		}
		if isBelow(dir, spec.HostPath) {
			continue
		}
		if err := p.requireTrust("mounts", i, spec.HostPath+" is outside of "+dir); err != nil {
			return err
		}
	}
	return nil
}

func (p projectCheck) env() error {
	for i, kv := range p.Values["env"] {
		if strings.Contains(kv, "=") {
			continue
		}
		if err := p.requireTrust("env", i, "the value of "+kv+" on the host"); err != nil {
			return err
		}
	}
	return nil
}

func (p projectCheck) masks() error {
	for i, mask := range p.Values["masks"] {
		if _, err := mount.CleanMask(mask); err != nil {
			return p.Errorf("masks", i, "%w", err)
		}
	}
	return nil
}

func (p projectCheck) ports() error {
	for i, text := range p.Values["ports"] {
		list, err := nat.ParseForwards(text)
		if err != nil {
			return p.Errorf("ports", i, "%w", err)
		}
		if at := list[0].Listen.Addr(); at.IsValid() && !at.IsLoopback() {
			if err := p.requireTrust("ports", i, "a port at "+at.String()); err != nil {
				return err
			}
		}
	}
	return nil
}

// access needs no trust: it can only take ports of the VM away, or open one of them to others.
func (p projectCheck) access() error {
	for _, key := range []string{"access.listen-allow", "access.listen-deny", "access.connect-allow", "access.connect-deny"} {
		for i, text := range p.Values[key] {
			if err := new(vm.PortRange).UnmarshalText([]byte(text)); err != nil {
				return p.Errorf(key, i, "%w", err)
			}
		}
	}
	return nil
}

// certificate refuses a file outside of the project: those of its bytes that are a certificate would go into the VM.
func (p projectCheck) certificate() error {
	file := p.Value("ca-cert")
	if file == "" || isBelow(realPath(filepath.Dir(p.Path)), file) {
		return nil
	}
	return p.requireTrust("ca-cert", -1, file+" is outside of the project")
}

// sockets refuses every socket: each is more than the directory, because a server listens behind it.
func (p projectCheck) sockets() error {
	for i, text := range p.Values["sockets"] {
		if _, err := vm.ParseUnixSocket(text); err != nil {
			return p.Errorf("sockets", i, "%w", err)
		}
		if err := p.requireTrust("sockets", i, "a socket of the host"); err != nil {
			return err
		}
	}
	return nil
}

// secrets refuses every secret: a project could name any variable of this process and a host of its own.
func (p projectCheck) secrets() error {
	for i, text := range p.Values["secrets"] {
		s, err := vm.ParseSecret(text)
		if err != nil {
			return p.Errorf("secrets", i, "%w", err)
		}
		if err := p.requireTrust("secrets", i, "sending "+s.Source+" to "+strings.Join(s.Hosts, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// isBelow says whether a path, without its links, is in dir.
func isBelow(dir, path string) bool {
	rel, err := filepath.Rel(dir, realPath(path))
	return err == nil && filepath.IsLocal(rel)
}

func (p projectCheck) network() error {
	if p.Value("network.mode") == string(egress.Open) {
		if err := p.requireTrust("network.mode", -1, "private networks"); err != nil {
			return err
		}
	}
	if len(p.Values["network.host-ports"]) > 0 {
		if err := p.requireTrust("network.host-ports", 0, "ports of the host"); err != nil {
			return err
		}
	}
	if list := p.Values["network.join"]; len(list) > 0 {
		if err := p.requireTrust("network.join", 0, "other VMs"); err != nil {
			return err
		}
	}
	for i, text := range p.Values["network.hosts"] {
		if _, err := egress.ParseHost(text); err != nil {
			return p.Errorf("network.hosts", i, "%w", err)
		}
		if err := p.requireTrust("network.hosts", i, "the address of a name, which rules for that name would open"); err != nil {
			return err
		}
	}
	for _, list := range new(egress.Policy).Lists() {
		key := "network." + list.Name
		for i, text := range p.Values[key] {
			if _, err := egress.ParseRule(text); err != nil {
				return p.Errorf(key, i, "%w", err)
			}
			if list.Denies || !isAddress(text) {
				continue
			}
			if err := p.requireTrust(key, i, "addresses, which may be of a private network"); err != nil {
				return err
			}
		}
	}
	return nil
}

// isAddress says whether a rule is about addresses and not about names.
func isAddress(rule string) bool {
	if strings.HasPrefix(rule, "[") {
		return true
	}
	host, _, _ := strings.Cut(rule, ":")
	host, _, _ = strings.Cut(host, "/")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.Count(rule, ":") > 1
}
