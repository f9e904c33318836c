package rpc

import (
	"math"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/rpc/wire"
)

func writeTime(w wire.Time, t time.Time) {
	w.SetSeconds(t.Unix())
	w.SetNanoseconds(uint32(t.Nanosecond()))
}

func readTime(w wire.Time) time.Time {
	if !w.IsValid() {
		return time.Time{}
	}
	return time.Unix(w.Seconds(), int64(w.Nanoseconds()))
}

// writeTexts fills a list made by create; an empty list stays null.
func writeTexts(create func(int32) (capnp.TextList, error), texts []string) error {
	if len(texts) == 0 {
		return nil
	}
	list, err := create(int32(len(texts)))
	if err != nil {
		return err
	}
	for i, s := range texts {
		if err := list.Set(i, s); err != nil {
			return err
		}
	}
	return nil
}

func readTexts(list capnp.TextList, err error) ([]string, error) {
	if err != nil || list.Len() == 0 {
		return nil, err
	}
	texts := make([]string, list.Len())
	for i := range texts {
		if texts[i], err = list.At(i); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

func (p StartParams) write(w wire.StartParams) error {
	if !p.Time.IsZero() {
		t, err := w.NewTime()
		if err != nil {
			return err
		}
		writeTime(t, p.Time)
	}
	w.SetNoNewPrivileges(p.NoNewPrivileges)
	if err := w.SetHostname(p.Hostname); err != nil {
		return err
	}
	if err := writeTexts(w.NewEnv, p.Env); err != nil {
		return err
	}
	if err := p.Network.write(w.NewNetwork); err != nil {
		return err
	}
	if err := w.SetCaCertificate(p.CACertificate); err != nil {
		return err
	}
	if err := writeUnixSockets(w.NewUnixSockets, p.UnixSockets); err != nil {
		return err
	}
	if err := p.Restored.write(w.NewRestored); err != nil {
		return err
	}
	if err := writePortRanges(w.NewListenDenied, p.ListenDenied); err != nil {
		return err
	}
	mounts, err := w.NewMounts(int32(len(p.Mounts)))
	if err != nil {
		return err
	}
	for i, m := range p.Mounts {
		if err := m.write(mounts.At(i)); err != nil {
			return err
		}
	}
	return nil
}

func (m Mount) write(w wire.Mount) error {
	w.SetReadOnly(m.ReadOnly)
	w.SetMessageSize(m.MessageSize)
	if err := w.SetTag(m.Tag); err != nil {
		return err
	}
	return w.SetTarget(m.Target)
}

func readStartParams(w wire.StartParams) (p StartParams, err error) {
	t, err := w.Time()
	if err != nil {
		return p, err
	}
	p.Time, p.NoNewPrivileges = readTime(t), w.NoNewPrivileges()
	if p.Hostname, err = w.Hostname(); err != nil {
		return p, err
	}
	if p.Env, err = readTexts(w.Env()); err != nil {
		return p, err
	}
	if p.Network, err = readNetworkParams(w.Network()); err != nil {
		return p, err
	}
	if p.CACertificate, err = copyData(w.CaCertificate()); err != nil {
		return p, err
	}
	if p.UnixSockets, err = readUnixSockets(w.UnixSockets()); err != nil {
		return p, err
	}
	if p.Restored, err = readRestored(w.Restored()); err != nil {
		return p, err
	}
	if p.ListenDenied, err = readPortRanges(w.ListenDenied()); err != nil {
		return p, err
	}
	mounts, err := w.Mounts()
	if err != nil {
		return p, err
	}
	for i := range mounts.Len() {
		m, err := readMount(mounts.At(i))
		if err != nil {
			return p, err
		}
		p.Mounts = append(p.Mounts, m)
	}
	return p, nil
}

func readMount(w wire.Mount) (m Mount, err error) {
	m.ReadOnly, m.MessageSize = w.ReadOnly(), w.MessageSize()
	if m.Tag, err = w.Tag(); err != nil {
		return m, err
	}
	m.Target, err = w.Target()
	return m, err
}

// write fills what create makes; nil stays null.
func (p *NetworkParams) write(create func() (wire.NetworkParams, error)) error {
	if p == nil {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetTimeoutMillis(uint32(min(max(p.Timeout.Milliseconds(), 0), math.MaxUint32)))
	if err := w.SetDevice(p.Device); err != nil {
		return err
	}
	return writeTexts(w.NewSearch, p.Search)
}

func readNetworkParams(w wire.NetworkParams, err error) (*NetworkParams, error) {
	if err != nil || !w.IsValid() {
		return nil, err
	}
	p := &NetworkParams{Timeout: time.Duration(w.TimeoutMillis()) * time.Millisecond}
	if p.Device, err = w.Device(); err != nil {
		return nil, err
	}
	p.Search, err = readTexts(w.Search())
	return p, err
}

func (i GuestInfo) write(w wire.GuestInfo) error {
	w.SetBootNanoseconds(uint64(i.Boot))
	if err := w.SetRelease(i.Release); err != nil {
		return err
	}
	for _, text := range []struct {
		set  func(string) error
		text string
	}{{w.SetNetworkWarning, i.NetworkWarning}, {w.SetDiskWarning, i.DiskWarning}, {w.SetShareWarning, i.ShareWarning}} {
		if err := text.set(text.text[:min(len(text.text), maxWarning)]); err != nil {
			return err
		}
	}
	return nil
}

// maxWarning bounds, in bytes, what a guest can say in each warning of GuestInfo.
const maxWarning = 1 << 10

func readGuestInfo(w wire.GuestInfo, err error) (i GuestInfo, _ error) {
	if err != nil {
		return i, err
	}
	i.Boot = time.Duration(w.BootNanoseconds())
	if i.Release, err = w.Release(); err != nil {
		return i, err
	}
	for _, text := range []struct {
		get func() ([]byte, error)
		to  *string
	}{{w.NetworkWarningBytes, &i.NetworkWarning}, {w.DiskWarningBytes, &i.DiskWarning}, {w.ShareWarningBytes, &i.ShareWarning}} {
		b, err := text.get()
		if err != nil {
			return i, err
		}
		*text.to = string(b[:min(len(b), maxWarning)])
	}
	return i, nil
}

func writeStats(w wire.Stats, s Stats) {
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

func readStats(w wire.Stats) Stats {
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
