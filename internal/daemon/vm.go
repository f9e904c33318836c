package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"agentvm/egress"
	"agentvm/internal/capnprpc"
	"agentvm/internal/daemonrpc"
	"agentvm/internal/guestrpc"
	"agentvm/nat"
	"agentvm/vm"
)

// machine makes a VM of a *vm.VM.
type machine struct {
	*vm.VM
	config Config
	files  *machineFiles

	unheard atomic.Int64 // denials whose events are not waited for any more
}

var _ VM = (*machine)(nil)

// Spawn starts a program.
func (m *machine) Spawn(ctx context.Context, c vm.Command) (Process, error) {
	p, err := m.VM.Spawn(ctx, c)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Stop stops the VM.
func (m *machine) Stop(ctx context.Context) error {
	return errors.Join(m.VM.Stop(ctx), m.files.Close())
}

// Close switches the VM off.
func (m *machine) Close() error { return errors.Join(m.VM.Close(), m.files.Close()) }

// Describe sets what is known after the boot.
func (m *machine) Describe(i *daemonrpc.Info) {
	i.Kernel, i.Image = m.KernelRelease(), m.Image().Name
	i.Policy = m.Policy().String()
	if m.config.Network.Disabled {
		i.Policy = "no network"
	}
	i.Ports = i.Ports[:0]
	for n, at := range m.Forwards() {
		f, err := nat.ParseForward(m.config.Network.Forwards[n])
		if err != nil {
			continue // it was parsed before
		}
		i.Ports = append(i.Ports, fmt.Sprintf("%s -> %d/%s", at, f.GuestPort, at.Network()))
	}
}

const (
	settleTime  = 300 * time.Millisecond
	settlePause = 2 * time.Millisecond
)

// settleDenials waits for events of denials: a command may end before it is known which process's connection was denied. Events that do
// not come in time are not waited for again.
func (m *machine) settleDenials(ctx context.Context) {
	if m.files.audit == nil {
		return
	}
	for deadline := time.Now().Add(settleTime); ; {
		s := m.NetworkStats().Egress
		missing := int64(s.Denied+s.Refused) - int64(s.EventsLost) - m.files.audit.denials.Load()
		if missing <= m.unheard.Load() || ctx.Err() != nil {
			return
		}
		if time.Now().After(deadline) {
			m.unheard.Store(missing)
			return
		}
		time.Sleep(settlePause)
	}
}

// Question is the content of the question "explain".
type Question struct {
	Host     string `json:"host"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"` // "tcp" or "udp"
}

// PolicyAnswer is the answer to "policy" and to the order "setPolicy".
type PolicyAnswer struct {
	Policy egress.Policy `json:"policy"`
	Text   string        `json:"text"`          // in one line
	Cut    int           `json:"cut,omitempty"` // flows that the new policy has ended
}

// DiskAnswer is the answer to "disk".
type DiskAnswer struct {
	Waits time.Time `json:"waits,omitzero"` // since when the guest waits for room on the host's disk
	Path  string    `json:"path,omitempty"`
}

// ForwardOrder is the order "forward": one more port, until the VM ends.
type ForwardOrder struct {
	Forward string `json:"forward"` // as nat.ParseForward reads it
}

// ForwardAnswer has the address at which it listens.
type ForwardAnswer struct {
	Address string `json:"address"`
}

// Ask answers what docs/internals/daemon.md lists.
func (m *machine) Ask(ctx context.Context, name string, question []byte) ([]byte, error) {
	answer, err := m.answer(ctx, name, question)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

func (m *machine) answer(ctx context.Context, name string, question []byte) (any, error) {
	switch name {
	case "flows":
		ctx, cancel := context.WithTimeout(ctx, askTime) // the guest may hang
		defer cancel()
		return m.Flows(ctx), nil
	case "denials":
		m.settleDenials(ctx)
		return m.Denials(), nil
	case "networkStats":
		return m.NetworkStats(), nil
	case "policy":
		return PolicyAnswer{Policy: m.Policy(), Text: m.Policy().String()}, nil
	case "disk":
		since, path := m.DiskWaits()
		return DiskAnswer{Waits: since, Path: path}, nil
	case "console":
		return string(m.Console()), nil
	case "setPolicy":
		return m.setPolicy(question)
	case "explain":
		return m.explain(question)
	case "forward":
		return m.forward(ctx, question)
	}
	return nil, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errnoNoSys, Message: fmt.Sprintf("unknown question %.40q", name)}
}

func (m *machine) setPolicy(question []byte) (any, error) {
	var p egress.Policy
	if err := parse(question, &p); err != nil {
		return nil, err
	}
	cut, err := m.SetPolicy(p)
	if err != nil {
		return nil, err
	}
	return PolicyAnswer{Policy: m.Policy(), Text: m.Policy().String(), Cut: cut}, nil
}

func (m *machine) explain(question []byte) (any, error) {
	var q Question
	if err := parse(question, &q); err != nil {
		return nil, err
	}
	return m.Explain(q.Host, q.Port, q.Protocol), nil
}

func (m *machine) forward(ctx context.Context, question []byte) (any, error) {
	var q ForwardOrder
	if err := parse(question, &q); err != nil {
		return nil, err
	}
	f, err := nat.ParseForward(q.Forward)
	if err != nil {
		return nil, err
	}
	at, err := m.Forward(context.WithoutCancel(ctx), f) // it outlives the client
	if err != nil {
		return nil, err
	}
	return ForwardAnswer{at.String()}, nil
}

func parse(question []byte, to any) error {
	if err := json.Unmarshal(question, to); err != nil {
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errnoInvalid, Message: "question: " + err.Error()}
	}
	return nil
}

// Linux's numbers, see capnprpc.Error.
const (
	errnoNoEntry  = 2
	errnoAgain    = 11
	errnoBusy     = 16
	errnoInvalid  = 22
	errnoPipe     = 32
	errnoNoSys    = 38
	errnoShutdown = 108
	errnoSearch   = 3
)

// Files is the guest's bulk connection.
func (m *machine) Files(ctx context.Context) (*guestrpc.FilesClient, error) {
	return m.FilesClient(ctx)
}
