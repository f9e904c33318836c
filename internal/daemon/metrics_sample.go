package daemon

import (
	"context"
	"math"
	"runtime"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/httpserver"
	"agentvm/nat"
	"agentvm/vm"
)

// sample are the counters of a daemon and its VM at one moment, which /metrics shows.
type sample struct {
	info    daemonrpc.Info
	uptime  time.Duration    // of the daemon
	guest   *guestrpc.Stats  // nil: the guest has not answered
	network *vm.NetworkStats // nil: there is no network
	limits  []nat.LimitUse
	flows   map[flowKey]int
}

// flowKey has the labels by which flows are counted.
type flowKey struct {
	protocol  string
	direction nat.Direction
	state     nat.State
}

// sample reads the counters. The guest may answer until ctx ends; the others do not need it.
func (d *daemon) sample(ctx context.Context) sample {
	s := sample{info: handler{d}.Info(), uptime: time.Since(d.started)}
	v, err := d.running()
	if err != nil {
		return s
	}
	if !v.Paused() {
		if stats, err := v.Stats(ctx); err == nil {
			s.guest = &stats
		}
	}
	stats, err := v.NetworkStats(ctx)
	if err != nil {
		return s
	}
	s.limits = stats.Limits // of connections with the guest's loopback there is one without a network, too
	if !d.config.Network.Disabled {
		s.network, s.flows = &stats, countFlows(v)
	}
	return s
}

// countFlows does not ask the guest for the flows' processes: the context in which Flows would ask has ended.
func countFlows(v VM) map[flowKey]int {
	ended, end := context.WithCancel(context.Background())
	end()
	counts := make(map[flowKey]int)
	flows, _ := v.Flows(ended)
	for _, f := range flows {
		counts[flowKey{f.Protocol, f.Direction, f.State}]++
	}
	return counts
}

// gather is the sample as metrics.
func (s sample) gather() *httpserver.Exposition {
	c := collector{vm: s.info.Name, exposition: &httpserver.Exposition{}}
	c.daemon(s)
	if s.guest != nil {
		c.guest(*s.guest)
	}
	for _, l := range s.limits {
		c.gauge("limit_used", "What is taken of the VM's limits.", l.Used, "limit", l.Limit)
		c.gauge("limit_maximum", "The VM's limits.", l.Maximum, "limit", l.Limit)
		c.counter("limit_refused_total", "How often a limit of the VM was in the way.", l.Refused, "limit", l.Limit)
	}
	if s.network != nil {
		c.link(*s.network)
		c.egress(*s.network)
		for key, n := range s.flows {
			c.gauge("flows", "Flows that are open.", n, "protocol", key.protocol, "direction", string(key.direction), "state", string(key.state))
		}
	}
	return c.exposition
}

// collector collects a VM's metrics. Labels are alternating names and values.
type collector struct {
	vm         string
	exposition *httpserver.Exposition
}

func (c collector) counter(name, help string, value uint64, labels ...string) {
	c.send(httpserver.Counter, name, help, float64(value), labels)
}

func (c collector) gauge(name, help string, value int, labels ...string) {
	c.send(httpserver.Gauge, name, help, float64(value), labels)
}

func (c collector) seconds(kind httpserver.MetricKind, name, help string, value time.Duration, labels ...string) {
	c.send(kind, name, help, value.Seconds(), labels)
}

// send repairs what a hostile guest could report: values below zero.
func (c collector) send(kind httpserver.MetricKind, name, help string, value float64, labels []string) {
	if !(value > 0) || math.IsInf(value, 0) { // NaN too
		value = 0
	}
	c.exposition.Add(kind, "agentvm_"+name, help, value, append(labels, "vm", c.vm)...)
}

func (c collector) daemon(s sample) {
	c.gauge("build_info", "The daemon's program.", 1, "version", s.info.Version, "goversion", runtime.Version())
	c.gauge("vm_info", "What the VM was started with.", 1, "image", s.info.Image, "kernel", s.info.Kernel)
	for _, state := range []daemonrpc.State{daemonrpc.Starting, daemonrpc.Running, daemonrpc.Stopping, daemonrpc.Failed, daemonrpc.Paused} {
		c.gauge("vm_state", "1 for the state that the VM is in.", number(s.info.State == state), "state", state.String())
	}
	c.seconds(httpserver.Gauge, "uptime_seconds", "Time since the daemon's start.", s.uptime)
	c.gauge("jobs", "Programs that run for clients.", s.info.Jobs)
	c.gauge("clients", "Connections of clients.", s.info.Clients)
	c.gauge("guest_up", "1 when the guest has returned its counters for this answer.", number(s.guest != nil))
}

func number(is bool) int {
	if is {
		return 1
	}
	return 0
}

// guest has what the guest says of itself, which a program that is root in it can falsify.
func (c collector) guest(s guestrpc.Stats) {
	const cpu, cpuHelp = "guest_cpu_seconds_total", "Processor time of the guest, as it says."
	c.seconds(httpserver.Counter, cpu, cpuHelp, s.User, "mode", "user")
	c.seconds(httpserver.Counter, cpu, cpuHelp, s.System, "mode", "system")
	c.seconds(httpserver.Counter, cpu, cpuHelp, s.Idle, "mode", "idle")
	c.seconds(httpserver.Gauge, "guest_uptime_seconds", "Time since the guest's boot, as it says.", s.Uptime)

	memory := func(name, help string, bytes uint64) {
		c.send(httpserver.Gauge, "guest_memory_"+name+"_bytes", help, float64(bytes), nil)
	}
	memory("total", "Memory of the guest, as it says.", s.MemoryTotal)
	memory("free", "Memory of the guest that holds nothing, as it says.", s.MemoryFree)
	memory("available", "Memory of the guest that programs could have, as it says.", s.MemoryAvailable)

	load := func(name, help string, value float64) { c.send(httpserver.Gauge, "guest_"+name, help, value, nil) }
	load("load1", "Load over one minute, as the guest says.", s.Load1)
	load("load5", "Load over five minutes, as the guest says.", s.Load5)
	load("load15", "Load over fifteen minutes, as the guest says.", s.Load15)
	c.gauge("guest_processes", "Processes in the guest, as it says.", s.Processes)

	const bytes, bytesHelp = "guest_network_bytes_total", "Bytes through the guest's interfaces, as it says."
	const packets, packetsHelp = "guest_network_packets_total", "Packets through the guest's interfaces, as it says."
	c.counter(bytes, bytesHelp, s.ReceivedBytes, "direction", "received")
	c.counter(bytes, bytesHelp, s.SentBytes, "direction", "sent")
	c.counter(packets, packetsHelp, s.ReceivedPackets, "direction", "received")
	c.counter(packets, packetsHelp, s.SentPackets, "direction", "sent")
}

// link has the host's counters of frames.
func (c collector) link(s vm.NetworkStats) {
	const frames, framesHelp = "network_frames_total", "Ethernet frames, as this host counts."
	const bytes, bytesHelp = "network_bytes_total", "Bytes of Ethernet frames, as this host counts."
	c.counter(frames, framesHelp, s.Link.FramesFromGuest, "direction", "from_guest")
	c.counter(frames, framesHelp, s.Link.FramesToGuest, "direction", "to_guest")
	c.counter(bytes, bytesHelp, s.Link.BytesFromGuest, "direction", "from_guest")
	c.counter(bytes, bytesHelp, s.Link.BytesToGuest, "direction", "to_guest")
	for reason, n := range s.Link.Dropped {
		c.counter("network_dropped_frames_total", "Frames that went nowhere.", n, "reason", string(reason))
	}
	c.counter("network_send_waits_total", "Sends that found the queue towards the guest full.", s.Link.SendWaits)
	c.counter("network_retransmits_total", "TCP segments that the gateway sent again.", s.Link.Retransmits)
}

// egress has the decisions on the guest's connections.
func (c collector) egress(s vm.NetworkStats) {
	const decisions, decisionsHelp = "egress_decisions_total", "Decisions on connections and echo requests."
	c.counter(decisions, decisionsHelp, s.Egress.Allowed, "verdict", "allowed")
	c.counter(decisions, decisionsHelp, s.Egress.Denied, "verdict", "denied")
	const queries, queriesHelp = "egress_dns_queries_total", "Decisions on DNS queries."
	c.counter(queries, queriesHelp, s.Egress.Queries-min(s.Egress.Refused, s.Egress.Queries), "verdict", "allowed")
	c.counter(queries, queriesHelp, s.Egress.Refused, "verdict", "denied")
	c.counter("egress_cut_total", "Connections that a new policy ended.", s.Egress.Cut)
	c.counter("egress_dials_total", "Connections that this host tried for the guest.", s.Egress.Dials)
	c.counter("egress_dial_errors_total", "Of these, failed.", s.Egress.DialErrors)
	c.counter("egress_events_lost_total", "Events that the log of the network never got.", s.Egress.EventsLost)
}
