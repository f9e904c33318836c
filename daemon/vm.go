package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"agentvm/egress"
	"agentvm/nat"
	"agentvm/rpc"
	"agentvm/vm"
)

// machine is a *vm.VM as a daemon sees it.
type machine struct {
	*vm.VM
	config Config
	files  *machineFiles

	unheard atomic.Int64 // denials that will never come
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

// Describe fills in what is known since the boot.
func (m *machine) Describe(i *rpc.DaemonInfo) {
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

// settleDenials waits for denials that are on their way: a command that was denied something may have ended before it is
// known whose connection that was. Those that do not come in time are not waited for again.
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

// Explained is the answer to the question "explain", Question what it asks.
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

// ForwardOrder is the order "forward": one more port, until the VM ends.
type ForwardOrder struct {
	Forward string `json:"forward"` // as nat.ParseForward reads it
}

// ForwardAnswer is where it listens.
type ForwardAnswer struct {
	Address string `json:"address"`
}

// Ask answers what docs/daemon.md lists.
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
		ctx, cancel := context.WithTimeout(ctx, askTime) // for a guest that stands still
		defer cancel()
		return m.Flows(ctx), nil
	case "denials":
		m.settleDenials(ctx)
		return m.Denials(), nil
	case "networkStats":
		return m.NetworkStats(), nil
	case "policy":
		return PolicyAnswer{Policy: m.Policy(), Text: m.Policy().String()}, nil
	case "console":
		return string(m.Console()), nil
	case "setPolicy":
		return m.setPolicy(question)
	case "explain":
		return m.explain(question)
	case "forward":
		return m.forward(ctx, question)
	}
	return nil, &rpc.Error{Kind: rpc.KindInvalid, Errno: errnoNoSys, Message: fmt.Sprintf("unknown question %.40q", name)}
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
	at, err := m.Forward(context.WithoutCancel(ctx), f) // it stays when the client has gone
	if err != nil {
		return nil, err
	}
	return ForwardAnswer{at.String()}, nil
}

func parse(question []byte, to any) error {
	if err := json.Unmarshal(question, to); err != nil {
		return &rpc.Error{Kind: rpc.KindInvalid, Errno: errnoInvalid, Message: "question: " + err.Error()}
	}
	return nil
}

// Linux's numbers, see rpc.Error.
const (
	errnoNoEntry = 2
	errnoAgain   = 11
	errnoBusy    = 16
	errnoInvalid = 22
	errnoPipe    = 32
	errnoNoSys   = 38
	errnoSearch  = 3
)

// Files is the guest's bulk connection.
func (m *machine) Files(ctx context.Context) (*rpc.FilesClient, error) { return m.FilesClient(ctx) }
