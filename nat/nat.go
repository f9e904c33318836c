package nat

import (
	"context"
	"errors"
	"sync"

	"agentvm/netstack"
)

// errEnded is why nothing begins any more: Run has ended.
var errEnded = errors.New("nat: the network has stopped")

// NAT connects the flows of one VM with the host. New makes one.
type NAT struct {
	config  Config
	network *netstack.Network
	limits  *gauges
	places  sync.Mutex // held while a flow takes its places in limits and enters the table, or gives them back and leaves it
	table   table
	send    *limiter // bytes from the guest; nil: no limit
	receive *limiter // bytes to the guest; nil: no limit
	buffers buffers  // for what comes from the host

	ctx    context.Context // of everything that runs; ends with Run
	cancel context.CancelFunc
	tasks  tasks

	openForwards openForwards
}

// New makes a NAT and registers its handlers with the network, whose Run comes after. Flows may begin at once; Run must
// be called, since it is what ends them.
func New(config Config) (*NAT, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &NAT{config: config, network: config.Network}
	n.limits = newGauges(config.Limits, config.Clock, n.warn)
	n.send = newLimiter(config.SendLimit, config.Clock)
	n.receive = newLimiter(config.ReceiveLimit, config.Clock)
	n.buffers.size, n.buffers.memory = min(largeBuffer, config.HighMark), config.Memory
	n.ctx, n.cancel = context.WithCancel(context.Background())
	// The stack drops a SYN silently when too many wait; with room to spare it is our limit that answers, with RST.
	n.network.HandleTCP(2*config.Limits.PendingDials+16, n.handleTCP)
	n.network.HandleUDP(n.handleUDP)
	n.network.HandleEcho(n.handleEcho)
	return n, nil
}

// Run waits until ctx ends, then ends all flows and port forwards, and returns ctx's error when the last goroutine is
// gone. It is called once.
func (n *NAT) Run(ctx context.Context) error {
	<-ctx.Done()
	n.tasks.seal()
	var ends sync.WaitGroup
	for _, f := range n.table.end() {
		ends.Go(func() { f.end(ReasonShutdown) }) // together: each RST may wait for room on the link
	}
	ends.Wait()
	n.cancel()
	n.tasks.end()
	return ctx.Err()
}

// warn tells that four fifths of a limit are taken.
func (n *NAT) warn(use LimitUse) {
	n.config.Logger.Warn("a limit of the VM is nearly reached", "limit", use.Limit, "used", use.Used, "maximum", use.Maximum)
	n.config.Observe(FlowEvent{Time: n.config.Clock.Now(), Kind: LimitWarning, Reason: ReasonLimit, Limit: use})
}

// tasks are the goroutines that Run waits for.
type tasks struct {
	mu    sync.Mutex
	group sync.WaitGroup
	ended bool
}

// enter counts the calling goroutine in, until leave. It returns false when Run has ended: then there is nothing to do
// but refuse.
func (t *tasks) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.group.Add(1)
	}
	return !t.ended
}

func (t *tasks) leave() { t.group.Done() }

// start runs f on a goroutine that Run waits for. It returns false, without f, when Run has ended. f ends when
// NAT.ctx does, or when its flow is asked to end.
func (t *tasks) start(f func()) bool {
	if !t.enter() {
		return false
	}
	go func() {
		defer t.leave()
		f()
	}()
	return true
}

// seal refuses what is new.
func (t *tasks) seal() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

// end refuses what is new and waits for what runs.
func (t *tasks) end() {
	t.seal()
	t.group.Wait()
}
