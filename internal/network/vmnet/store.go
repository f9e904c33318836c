package vmnet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/naming"
	"agentvm/internal/host/private"
)

// Bounds.
const (
	maxNetworks = 256
	firstHost   = 2 // .1 is for VMs without a name
	lastHost    = 254
	maxFile     = 4 << 10
)

// Range has the subnets of all networks.
var Range = netip.MustParsePrefix("198.18.0.0/15")

// Store has the networks of a directory, STORE/networks.
type Store struct{ Dir string }

// In returns the networks of a store of VMs.
func In(store string) Store { return Store{filepath.Join(store, "networks")} }

// Network is a network of VMs.
type Network struct {
	Name   string       `json:"-"`
	Subnet netip.Prefix `json:"subnet"`
	Key    string       `json:"key"`
}

// Status is a Network with its members that are there.
type Status struct {
	Name    string       `json:"name"`
	Subnet  netip.Prefix `json:"subnet"`
	Members []Peer       `json:"members"`
}

// Peer is a member by name.
type Peer struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
}

// reserved are names of networks that mean something else to users of containers.
var reserved = []string{"none", "host", "bridge", "default"}

// ErrNotFound says that there is no such network.
var ErrNotFound = errors.New("no such network of VMs (agentvm network create makes one)")

// Create makes a network.
func (s Store) Create(ctx context.Context, name string) (n Network, err error) {
	if err := naming.Check("network", name); err != nil {
		return n, err
	}
	if slices.Contains(reserved, name) {
		return n, fmt.Errorf("network %s: the name is not for a network of VMs (none of %s is): take another", name, strings.Join(reserved, ", "))
	}
	if strings.Contains(name, ".") {
		return n, fmt.Errorf("network %q: a name without dots, for VM.%s is the name of a VM in it", name, name)
	}
	if err := private.MakeFolder(s.Dir); err != nil {
		return n, err
	}
	lock, err := lockfile.Wait(ctx, filepath.Join(s.Dir, "lock"))
	if err != nil {
		return n, err
	}
	defer lock.Close()
	names, err := s.names()
	if err != nil {
		return n, err
	}
	if slices.Contains(names, name) {
		return n, fmt.Errorf("network %s exists already", name)
	}
	subnet, err := s.freeSubnet(names)
	if err != nil {
		return n, err
	}
	n = Network{name, subnet, rand.Text()}
	text, err := json.Marshal(n)
	if err != nil {
		return n, err
	}
	dir := s.path(name)
	if err := errors.Join(private.MakeFolder(dir), private.MakeFolder(filepath.Join(dir, "members"))); err != nil {
		return n, err
	}
	return n, atomicfile.Write(filepath.Join(dir, "network.json"), append(text, '\n'))
}

func (s Store) path(name string) string { return filepath.Join(s.Dir, name) }

func (s Store) freeSubnet(names []string) (netip.Prefix, error) {
	used := map[netip.Prefix]bool{}
	for _, name := range names {
		if n, err := s.Open(name); err == nil {
			used[n.Subnet] = true
		}
	}
	for i := range maxNetworks {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 0}), 24)
		if !used[subnet] {
			return subnet, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("there are %d networks of VMs, the most that there can be", maxNetworks)
}

func (s Store) names() (names []string, err error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(s.path(e.Name()), "network.json")); e.IsDir() && err == nil {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// Open returns a network.
func (s Store) Open(name string) (n Network, err error) {
	if err := naming.Check("network", name); err != nil {
		return n, err
	}
	path := filepath.Join(s.path(name), "network.json")
	text, err := private.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return n, fmt.Errorf("network %s: %w", name, ErrNotFound)
	}
	if err != nil {
		return n, fmt.Errorf("network %s: %s: %w", name, path, err)
	}
	err = json.Unmarshal(text, &n)
	if err == nil && (!n.Subnet.IsValid() || n.Subnet.Bits() != 24 || !Range.Contains(n.Subnet.Addr()) || n.Key == "") {
		err = errors.New("it has no subnet or no key")
	}
	if err != nil {
		return n, fmt.Errorf("network %s: %s is damaged: %w: remove the folder %s while no VM uses it, and create the network anew (agentvm network create %[1]s)",
			name, path, err, filepath.Dir(path))
	}
	n.Name, n.Subnet = name, n.Subnet.Masked()
	return n, nil
}

// List returns all networks by name.
func (s Store) List(ctx context.Context) ([]Status, error) {
	names, err := s.names()
	list := []Status{}
	for _, name := range names {
		n, err := s.Open(name)
		if err != nil {
			return list, err
		}
		list = append(list, s.status(ctx, n))
	}
	return list, err
}

func (s Store) status(ctx context.Context, n Network) Status {
	status := Status{n.Name, n.Subnet, []Peer{}}
	for name, host := range s.hosts(n) {
		if s.alive(ctx, n, host) {
			status.Members = append(status.Members, Peer{name, n.address(host)})
		}
	}
	slices.SortFunc(status.Members, func(a, b Peer) int { return a.Address.Compare(b.Address) })
	return status
}

// Remove deletes a network that no VM is in.
func (s Store) Remove(ctx context.Context, name string) error {
	n, err := s.Open(name)
	if err != nil {
		return err
	}
	lock, err := lockfile.Wait(ctx, filepath.Join(s.path(name), "lock"))
	if err != nil {
		return err
	}
	defer lock.Close()
	if members := s.status(ctx, n).Members; len(members) > 0 {
		return fmt.Errorf("network %s has %d VMs that run, as %s: stop them first", name, len(members), members[0].Name)
	}
	return os.RemoveAll(s.path(name))
}

// hosts returns the last bytes of the addresses that VMs have, by name, whether they run or not.
func (s Store) hosts(n Network) map[string]byte {
	hosts := map[string]byte{}
	folder := filepath.Join(s.path(n.Name), "members")
	entries, _ := os.ReadDir(folder) // without it there are none
	for _, e := range entries {
		text, err := private.ReadFile(filepath.Join(folder, e.Name()), maxFile)
		host, parsed := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 8)
		if err == nil && parsed == nil && host >= firstHost && host <= lastHost && naming.Check("", e.Name()) == nil {
			hosts[e.Name()] = byte(host)
		}
	}
	return hosts
}

// claim returns the address of a VM, a new one if it has none. The caller holds the lock. When all are taken, one whose VM does not run is.
func (s Store) claim(ctx context.Context, n Network, name string) (byte, error) {
	hosts := s.hosts(n)
	if host, found := hosts[name]; found {
		return host, nil
	}
	owner := map[byte]string{}
	for name, host := range hosts {
		owner[host] = name
	}
	folder := filepath.Join(s.path(n.Name), "members")
	for _, stopped := range []bool{false, true} {
		for host := byte(firstHost); host <= lastHost; host++ {
			old, taken := owner[host]
			switch {
			case taken && (!stopped || s.alive(ctx, n, host)):
				continue
			case taken:
				if err := os.Remove(filepath.Join(folder, old)); err != nil {
					return 0, err
				}
			}
			return host, atomicfile.Write(filepath.Join(folder, name), []byte(strconv.Itoa(int(host))+"\n"))
		}
	}
	return 0, fmt.Errorf("network %s has %d VMs, the most that it can have", n.Name, lastHost-firstHost+1)
}

func (n Network) address(host byte) netip.Addr {
	a := n.Subnet.Addr().As4()
	a[3] = host
	return netip.AddrFrom4(a)
}

// alive reports whether a process accepts connections for an address.
func (s Store) alive(ctx context.Context, n Network, host byte) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := s.connect(ctx, n, host)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
