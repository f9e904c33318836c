package daemon

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostpath"
	"agentvm/vm"
)

// A confined daemon cannot open further directories of the host. The server of a mount that is added to a VM that runs is therefore a process of
// its own, which the client starts, with the user's rights, and which is then confined to the one directory:
//
//	client ── starts ──► server: opens the directory ── offer, key ──► daemon keeps the connection, for offerTime
//	  │    ◄── ready ──────┘ confines itself                               ▲
//	  └── Change{AddMount: key} ── the guest mounts, FUSE goes through ────┘
//
// The connection is the server's life: it ends with the mount, the VM, and the daemon. A server that is killed leaves a mount that answers EIO.

// mountOffer is what a server says in a connection of the channel Mount, in a message like those of the handshake. The daemon answers with a
// welcome, and what follows is FUSE.
type mountOffer struct {
	Key      string            `json:"key"`   // of the client that has started it
	Mount    string            `json:"mount"` // as mount.Parse reads it
	Identity hostpath.Identity `json:"identity"`

	conn  net.Conn
	mount vm.Mount
	timer *time.Timer
}

const (
	maxOffer  = 64 << 10 // bytes of the message
	maxOffers = 32       // that wait
	offerTime = 20 * time.Second
	offerKey  = 64 // bytes of a key
)

// mountOffers are connections of servers whose mounts are not added yet. The zero value is ready to use.
type mountOffers struct {
	mu     sync.Mutex
	list   map[string]*mountOffer // by key
	closed bool
}

// receive reads an offer, and keeps the connection unless there is an error.
func (o *mountOffers) receive(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	m := &mountOffer{conn: conn}
	err := readMessageUpTo(conn, m, maxOffer)
	if err == nil {
		err = m.mount.UnmarshalText([]byte(m.Mount))
	}
	if err == nil && len(m.Key) != offerKey {
		err = fmt.Errorf("a key of %d bytes, want %d", len(m.Key), offerKey)
	}
	m.mount.Identity = m.Identity
	if err == nil {
		err = o.keep(m)
	}
	if err != nil {
		_ = writeMessage(conn, welcome{Version: protocolVersion, Error: err.Error()})
		return err
	}
	if err := writeMessage(conn, welcome{Version: protocolVersion}); err != nil {
		o.take(m.Key)
		return err
	}
	return conn.SetDeadline(time.Time{})
}

func (o *mountOffers) keep(m *mountOffer) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return vm.ErrStopped
	case o.list[m.Key] != nil:
		return fmt.Errorf("the mount %s was offered already", m.Mount)
	case len(o.list) >= maxOffers:
		return fmt.Errorf("%d mounts are offered already", len(o.list))
	}
	if o.list == nil {
		o.list = make(map[string]*mountOffer)
	}
	o.list[m.Key] = m
	m.timer = time.AfterFunc(offerTime, func() {
		if o.take(m.Key) == m {
			_ = m.conn.Close()
		}
	})
	return nil
}

// take takes an offer out of the list; nil when there is none.
func (o *mountOffers) take(key string) *mountOffer {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.list[key]
	if m != nil {
		m.timer.Stop()
		delete(o.list, key)
	}
	return m
}

// close ends the servers that wait, and refuses others.
func (o *mountOffers) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for key, m := range o.list {
		m.timer.Stop()
		_ = m.conn.Close()
		delete(o.list, key)
	}
}

// addMount adds a mount that its server has offered.
func (h handler) addMount(ctx context.Context, key string) error {
	offer := h.d.offers.take(key)
	if offer == nil {
		return &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.ENOENT, Message: "add a mount: its server has ended, or was never there"}
	}
	v, err := h.d.awake()
	if err != nil {
		_ = offer.conn.Close()
		return err
	}
	if err := v.AttachMount(ctx, offer.mount, offer.conn); err != nil {
		return err
	}
	h.d.event(Event{Kind: EventMountAdded, Message: offer.Mount})
	return nil
}

// removeMount removes one that was added.
func (h handler) removeMount(ctx context.Context, r daemonrpc.RemoveMount) error {
	v, err := h.d.awake()
	if err != nil {
		return err
	}
	if err := v.RemoveMount(ctx, r.GuestPath, r.Force); err != nil {
		return err
	}
	h.d.event(Event{Kind: EventMountRemoved, Message: r.GuestPath})
	return nil
}

// Mounts lists the mounts of the VM.
func (h handler) Mounts(ctx context.Context) (list []daemonrpc.MountInfo, err error) {
	v, err := h.d.running()
	if err != nil {
		return nil, err
	}
	mounts, err := v.Mounts(ctx)
	for _, m := range mounts {
		one := daemonrpc.MountInfo{Mount: m.Mount, Identity: m.Mount.Identity, Added: m.Added, Instructions: m.Instructions}
		if m.Err != nil {
			one.Error = m.Err.Error()
		}
		list = append(list, one)
	}
	return list, err
}
