package guestrpc

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

func WriteTime(w guestwire.Time, t time.Time) {
	w.SetSeconds(t.Unix())
	w.SetNanoseconds(uint32(t.Nanosecond()))
}

func ReadTime(w guestwire.Time) time.Time {
	if !w.IsValid() {
		return time.Time{}
	}
	return time.Unix(w.Seconds(), int64(w.Nanoseconds()))
}

// writeTime fills what create makes; the zero time stays null.
func writeTime(create func() (guestwire.Time, error), t time.Time) error {
	if t.IsZero() {
		return nil
	}
	w, err := create()
	if err == nil {
		WriteTime(w, t)
	}
	return err
}

func (p StartParams) write(w guestwire.StartParams) error {
	if len(p.ListenDenied) > MaxPortRanges {
		return fmt.Errorf("%d ranges of ports: a guest takes at most %d", len(p.ListenDenied), MaxPortRanges)
	}
	w.SetFlags(uint64(p.Flags))
	w.SetNoNewPrivileges(p.Flags&NoNewPrivileges != 0)
	return errors.Join(writeTime(w.NewTime, p.Time), w.SetHostname(p.Hostname), capnprpc.WriteTexts(w.NewEnv, p.Env), p.Network.write(w.NewNetwork),
		w.SetCaCertificate(p.CACertificate), capnprpc.WriteTexts(w.NewHosts, p.Hosts), capnprpc.WriteTexts(w.NewDirectories, p.Directories), capnprpc.WriteList(w.NewUnixSockets, p.UnixSockets, UnixSocket.write),
		p.Restored.write(w.NewRestored), capnprpc.WriteList(w.NewListenDenied, p.ListenDenied, PortRange.write),
		capnprpc.WriteList(w.NewMounts, p.Mounts, Mount.write))
}

func (m Mount) write(w guestwire.Mount) error {
	w.SetReadOnly(m.ReadOnly)
	w.SetCopyOnWrite(m.CopyOnWrite)
	return errors.Join(w.SetTag(m.Tag), w.SetTarget(m.Target))
}

func readStartParams(w guestwire.StartParams) (p StartParams, err error) {
	var read capnprpc.FieldReader
	t, err := w.Time()
	read.Keep(err)
	p = StartParams{
		Time: ReadTime(t), Flags: StartFlags(w.Flags()), Hostname: read.Text(w.Hostname()), Env: read.Texts(w.Env()),
		CACertificate: read.Data(w.CaCertificate()), Hosts: read.Texts(w.Hosts()), Directories: read.Texts(w.Directories()),
	}
	p.Network, err = readNetworkParams(w.Network())
	read.Keep(err)
	p.Restored, err = readRestored(w.Restored())
	read.Keep(err)
	sockets, err := w.UnixSockets()
	p.UnixSockets, err = capnprpc.ReadList(sockets, err, maxEntries, readUnixSocket)
	read.Keep(err)
	denied, err := w.ListenDenied()
	p.ListenDenied, err = capnprpc.ReadList(denied, err, MaxPortRanges, readPortRange)
	read.Keep(err)
	mounts, err := w.Mounts()
	p.Mounts, err = capnprpc.ReadList(mounts, err, maxEntries, readMount)
	read.Keep(err)
	return p, read.Err
}

func readMount(w guestwire.Mount) (Mount, error) {
	var read capnprpc.FieldReader
	return Mount{ReadOnly: w.ReadOnly(), CopyOnWrite: w.CopyOnWrite(), Tag: read.Text(w.Tag()), Target: read.Text(w.Target())}, read.Err
}

// write fills what create makes; nil stays null.
func (p *NetworkParams) write(create func() (guestwire.NetworkParams, error)) error {
	if p == nil {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetMtu(uint16(min(max(p.MTU, 0), math.MaxUint16)))
	if p.Address.IsValid() {
		w.SetPrefixLength(uint8(p.Address.Bits()))
		if err := w.SetAddress(p.Address.Addr().AsSlice()); err != nil {
			return err
		}
	}
	if err := errors.Join(w.SetGateway(p.Gateway.AsSlice()), w.SetDevice(p.Device), capnprpc.WriteTexts(w.NewSearch, p.Search)); err != nil {
		return err
	}
	servers, err := w.NewDns(int32(len(p.DNS)))
	for i := 0; err == nil && i < len(p.DNS); i++ {
		err = servers.Set(i, p.DNS[i].AsSlice())
	}
	return err
}

func readNetworkParams(w guestwire.NetworkParams, err error) (*NetworkParams, error) {
	if err != nil || !w.IsValid() {
		return nil, err
	}
	p := &NetworkParams{MTU: int(w.Mtu())}
	if p.Device, err = w.Device(); err != nil {
		return nil, err
	}
	if p.Search, err = capnprpc.ReadTexts(w.Search()); err != nil {
		return nil, err
	}
	address, err := readIPv4(w.Address())
	if err != nil {
		return nil, err
	}
	if address.IsValid() {
		if p.Address = netip.PrefixFrom(address, int(w.PrefixLength())); !p.Address.IsValid() {
			return nil, fmt.Errorf("a subnet of %d bits", w.PrefixLength())
		}
	}
	if p.Gateway, err = readIPv4(w.Gateway()); err != nil {
		return nil, err
	}
	servers, err := w.Dns()
	for i := 0; err == nil && i < servers.Len(); i++ {
		var b []byte
		if b, err = servers.At(i); err == nil {
			server, ok := netip.AddrFromSlice(b)
			if !ok {
				return nil, fmt.Errorf("a DNS server's address of %d bytes", len(b))
			}
			p.DNS = append(p.DNS, server)
		}
	}
	return p, err
}

// readIPv4 returns the zero Addr for no bytes.
func readIPv4(b []byte, err error) (netip.Addr, error) {
	if err != nil || len(b) == 0 {
		return netip.Addr{}, err
	}
	if len(b) != 4 {
		return netip.Addr{}, fmt.Errorf("an IPv4 address of %d bytes", len(b))
	}
	return netip.AddrFrom4([4]byte(b)), nil
}

func (i GuestInfo) write(w guestwire.GuestInfo) error {
	w.SetBootNanoseconds(uint64(i.Boot))
	w.SetFlags(uint64(i.Flags))
	if err := w.SetRelease(i.Release); err != nil {
		return err
	}
	for _, text := range []struct {
		set  func(string) error
		text string
	}{{w.SetNetworkWarning, i.NetworkWarning}, {w.SetDiskWarning, i.DiskWarning}} {
		if err := text.set(text.text[:min(len(text.text), maxWarning)]); err != nil {
			return err
		}
	}
	return nil
}

// maxWarning bounds, in bytes, each of a guest's warnings in GuestInfo.
const maxWarning = 1 << 10

func readGuestInfo(w guestwire.GuestInfo, err error) (i GuestInfo, _ error) {
	if err != nil {
		return i, err
	}
	i.Boot, i.Flags = time.Duration(w.BootNanoseconds()), StartFlags(w.Flags())
	if i.Release, err = w.Release(); err != nil {
		return i, err
	}
	for _, text := range []struct {
		get func() ([]byte, error)
		to  *string
	}{{w.NetworkWarningBytes, &i.NetworkWarning}, {w.DiskWarningBytes, &i.DiskWarning}} {
		b, err := text.get()
		if err != nil {
			return i, err
		}
		*text.to = string(b[:min(len(b), maxWarning)])
	}
	return i, nil
}

func WriteStats(w guestwire.Stats, s Stats) {
	w.SetUptimeNanoseconds(uint64(s.Uptime))
	w.SetUserNanoseconds(uint64(s.User))
	w.SetSystemNanoseconds(uint64(s.System))
	w.SetIdleNanoseconds(uint64(s.Idle))
	w.SetLoad1(float32(s.Load1))
	w.SetLoad5(float32(s.Load5))
	w.SetLoad15(float32(s.Load15))
	w.SetMemoryTotal(s.MemoryTotal)
	w.SetMemoryFree(s.MemoryFree)
	w.SetMemoryAvailable(s.MemoryAvailable)
	w.SetProcesses(uint32(s.Processes))
	w.SetReceivedBytes(s.ReceivedBytes)
	w.SetSentBytes(s.SentBytes)
	w.SetReceivedPackets(s.ReceivedPackets)
	w.SetSentPackets(s.SentPackets)
}

func ReadStats(w guestwire.Stats) Stats {
	return Stats{
		Uptime: time.Duration(w.UptimeNanoseconds()), User: time.Duration(w.UserNanoseconds()),
		System: time.Duration(w.SystemNanoseconds()), Idle: time.Duration(w.IdleNanoseconds()),
		Load1: float64(w.Load1()), Load5: float64(w.Load5()), Load15: float64(w.Load15()),
		MemoryTotal: w.MemoryTotal(), MemoryFree: w.MemoryFree(), MemoryAvailable: w.MemoryAvailable(),
		Processes:     int(w.Processes()),
		ReceivedBytes: w.ReceivedBytes(), SentBytes: w.SentBytes(),
		ReceivedPackets: w.ReceivedPackets(), SentPackets: w.SentPackets(),
	}
}

func WriteExit(create func() (guestwire.Exit, error), s *ExitStatus) error {
	if s == nil {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetCode(uint8(s.Code))
	w.SetSignal(uint8(s.Signal))
	if s.Cause == nil {
		return nil
	}
	f, err := w.NewFailure()
	if err != nil {
		return err
	}
	return capnprpc.SetFailure(f, capnprpc.LinuxFailure(s.Cause))
}

func ReadExit(w guestwire.Exit, err error) (*ExitStatus, error) {
	if err != nil || !w.IsValid() {
		return nil, err
	}
	cause, err := w.Failure()
	if err != nil {
		return nil, err
	}
	return &ExitStatus{Code: int(w.Code()), Signal: int(w.Signal()), Cause: capnprpc.FailureOf(cause, nil)}, nil
}

func (r PortRange) write(w guestwire.PortRange) error {
	w.SetFirst(r.First)
	w.SetLast(r.Last)
	return nil
}

func readPortRange(w guestwire.PortRange) (PortRange, error) {
	return PortRange{w.First(), w.Last()}, nil
}
