package daemon

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/egress"
	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/nat"
	"agentvm/netstack"
	"agentvm/vm"
)

// countingVM is a fakeVM with counters.
type countingVM struct {
	*fakeVM
	stats  guestrpc.Stats
	silent bool // its guest does not answer
}

func (v countingVM) Stats(ctx context.Context) (guestrpc.Stats, error) {
	if v.silent {
		<-ctx.Done()
		return guestrpc.Stats{}, ctx.Err()
	}
	return v.stats, nil
}

func (countingVM) NetworkStats(context.Context) (vm.NetworkStats, error) {
	return vm.NetworkStats{
		Link: netstack.Stats{
			FramesFromGuest: 5, BytesFromGuest: 600, FramesToGuest: 7,
			Dropped: map[netstack.DropReason]uint64{netstack.DropSource: 3},
		},
		Egress: egress.Stats{Allowed: 11, Denied: 12, Queries: 9, Refused: 2, Cut: 1},
		Limits: []nat.LimitUse{{Limit: "local connections", Used: 3, Maximum: 256, Refused: 4}},
	}, nil
}

func (countingVM) Flows(ctx context.Context) ([]vm.Flow, error) {
	if ctx.Err() == nil {
		panic("asks the guest")
	}
	flow := nat.Flow{Protocol: "tcp", Direction: nat.Out, State: nat.Established}
	return []vm.Flow{{Flow: flow}, {Flow: flow}, {Flow: nat.Flow{Protocol: "udp", Direction: nat.In, State: nat.Established}}}, nil
}

// startMetered starts a daemon with metrics and returns their address when its VM runs.
func startMetered(t *testing.T, v countingVM, c Config) (d *inside, address string) {
	t.Helper()
	c.Metrics = "127.0.0.1:0"
	d = startInside(t, c, timing{}, func(context.Context, booting) (VM, error) { return v, nil })
	if err := d.connect(t).AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return d, d.status(t).Metrics
}

// request sends a request and returns the answer. change may be nil.
func request(t *testing.T, method, url string, change func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestMetrics(t *testing.T) {
	v := countingVM{fakeVM: newFakeVM(), stats: guestrpc.Stats{
		Uptime: time.Minute, User: 1500 * time.Millisecond, System: 2 * time.Second, Idle: -time.Second,
		Load1: 0.25, Load5: math.NaN(), Load15: math.Inf(1),
		MemoryTotal: 1 << 28, MemoryFree: 1 << 26, MemoryAvailable: 1 << 27, Processes: 4,
		ReceivedBytes: 100, SentBytes: 200, ReceivedPackets: 3, SentPackets: math.MaxUint64,
	}}
	_, address := startMetered(t, v, Config{Config: vm.Config{Image: "alpine:edge"}})
	response, body := request(t, "GET", "http://"+address+"/metrics", nil)
	if response.StatusCode != 200 || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%s, %s: %s", response.Status, response.Header, body)
	}
	lines := strings.Split(body, "\n")
	for _, want := range []string{
		`agentvm_vm_info{image="alpine:edge",kernel="fake",vm="dev"} 1`,
		`agentvm_vm_state{state="running",vm="dev"} 1`,
		`agentvm_vm_state{state="failed",vm="dev"} 0`,
		`agentvm_jobs{vm="dev"} 0`,
		`# TYPE agentvm_clients gauge`,
		`agentvm_guest_up{vm="dev"} 1`,
		`# TYPE agentvm_guest_cpu_seconds_total counter`,
		`agentvm_guest_cpu_seconds_total{mode="user",vm="dev"} 1.5`,
		`agentvm_guest_cpu_seconds_total{mode="system",vm="dev"} 2`,
		`agentvm_guest_cpu_seconds_total{mode="idle",vm="dev"} 0`,
		`agentvm_guest_memory_total_bytes{vm="dev"} 2.68435456e+08`,
		`agentvm_guest_memory_free_bytes{vm="dev"} 6.7108864e+07`,
		`agentvm_guest_memory_available_bytes{vm="dev"} 1.34217728e+08`,
		`agentvm_guest_load1{vm="dev"} 0.25`,
		`agentvm_guest_load5{vm="dev"} 0`,
		`agentvm_guest_load15{vm="dev"} 0`,
		`agentvm_guest_processes{vm="dev"} 4`,
		`agentvm_guest_network_bytes_total{direction="sent",vm="dev"} 200`,
		`agentvm_guest_network_packets_total{direction="received",vm="dev"} 3`,
		`agentvm_network_frames_total{direction="to_guest",vm="dev"} 7`,
		`agentvm_network_dropped_frames_total{reason="source address",vm="dev"} 3`,
		`agentvm_flows{protocol="tcp",direction="out",state="ESTABLISHED",vm="dev"} 2`,
		`agentvm_flows{protocol="udp",direction="in",state="ESTABLISHED",vm="dev"} 1`,
		`agentvm_egress_decisions_total{verdict="denied",vm="dev"} 12`,
		`agentvm_limit_used{limit="local connections",vm="dev"} 3`,
		`agentvm_limit_maximum{limit="local connections",vm="dev"} 256`,
		`agentvm_limit_refused_total{limit="local connections",vm="dev"} 4`,
		`agentvm_egress_dns_queries_total{verdict="allowed",vm="dev"} 7`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("there is no line %s", want)
		}
	}
	seen := make(map[string]bool)
	for _, line := range lines {
		if name, _, _ := strings.Cut(line, "} "); seen[name] && name != "" {
			t.Errorf("twice: %s", line)
		} else {
			seen[name] = true
		}
	}
	if !strings.Contains(body, `version="test"`) || strings.Contains(body, "go_goroutines") {
		t.Error("build information is missing, or the global registry is served")
	}
	if t.Failed() {
		t.Log(body)
	}
}

// TestMetricsOfSilentGuest: the host's counters are there when the guest does not answer.
func TestMetricsOfSilentGuest(t *testing.T) {
	_, address := startMetered(t, countingVM{fakeVM: newFakeVM(), silent: true}, Config{Config: vm.Config{Network: vm.Network{Disabled: true}}})
	_, body := request(t, "GET", "http://"+address+"/metrics", nil)
	if !strings.Contains(body, `agentvm_guest_up{vm="dev"} 0`) || !strings.Contains(body, "agentvm_uptime_seconds") ||
		!strings.Contains(body, `agentvm_limit_used{limit="local connections",vm="dev"} 3`) {
		t.Error(body)
	}
	for _, absent := range []string{"agentvm_guest_cpu", "agentvm_network_frames", "agentvm_egress"} {
		if strings.Contains(body, absent) {
			t.Errorf("there is %s: %s", absent, body)
		}
	}
}

func TestMetricsRefuse(t *testing.T) {
	_, address := startMetered(t, countingVM{fakeVM: newFakeVM()}, Config{})
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, test := range []struct {
		name, method, path string
		change             func(*http.Request)
		want               int
	}{
		{"localhost", "GET", "/metrics", host("LOCALHOST:80"), 200},
		{"another loopback address", "GET", "/metrics", host("127.8.0.1"), 200},
		{"IPv6", "GET", "/metrics", host("[::1]:9"), 200},
		{"IPv6 without a port", "GET", "/metrics", host("[::1]"), 200},
		{"rebound name", "GET", "/metrics", host("evil.example"), 421},
		{"rebound name with a port", "GET", "/metrics", host("evil.example:80"), 421},
		{"name that begins well", "GET", "/metrics", host("localhost.evil.example"), 421},
		{"address as a name", "GET", "/metrics", host("127.0.0.1.evil.example"), 421},
		{"another address", "GET", "/metrics", host("192.0.2.1"), 421},
		{"foreign origin", "GET", "/metrics", header("Origin", "http://evil.example"), 403},
		{"opaque origin", "GET", "/metrics", header("Origin", "null"), 403},
		{"own origin", "GET", "/metrics", header("Origin", "http://"+address), 200},
		{"origin of another port", "GET", "/metrics", header("Origin", "http://127.0.0.1:1"), 403},
		{"foreign page", "GET", "/metrics", header("Sec-Fetch-Site", "cross-site"), 403},
		{"address bar", "GET", "/metrics", header("Sec-Fetch-Site", "none"), 200},
		{"post", "POST", "/metrics", nil, 405},
		{"head", "HEAD", "/metrics", nil, 405},
		{"options", "OPTIONS", "/metrics", nil, 405},
		{"body", "GET", "/metrics", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("x")), 1
		}, 413},
		{"another path", "GET", "/", nil, 404},
		{"profiles", "GET", "/debug/pprof/", nil, 404},
		{"headers too long", "GET", "/metrics", header("X", strings.Repeat("x", 64<<10)), 431},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, body := request(t, test.method, "http://"+address+test.path, test.change)
			if response.StatusCode != test.want {
				t.Errorf("%s, want %d: %.200s", response.Status, test.want, body)
			}
			if test.want != 200 && strings.Contains(body, "agentvm_") {
				t.Errorf("it tells: %.200s", body)
			}
		})
	}
}

// TestMetricsBusy: while the guest keeps as many readers waiting as may read at a time, more are refused, and the next are not.
func TestMetricsBusy(t *testing.T) {
	_, address := startMetered(t, countingVM{fakeVM: newFakeVM(), silent: true}, Config{})
	codes := make(chan int)
	for range 2 * maxScrapes {
		go func() {
			answer, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				codes <- 0
				return
			}
			answer.Body.Close()
			codes <- answer.StatusCode
		}()
	}
	got := map[int]int{}
	for range 2 * maxScrapes {
		got[<-codes]++
	}
	if got[http.StatusOK] < 4 || got[http.StatusServiceUnavailable] == 0 || got[http.StatusOK]+got[http.StatusServiceUnavailable] != 2*maxScrapes {
		t.Errorf("statuses %v of %d readers at once", got, 2*maxScrapes)
	}
	if answer, _ := request(t, "GET", "http://"+address+"/metrics", nil); answer.StatusCode != http.StatusOK {
		t.Errorf("a reader after them: %s", answer.Status)
	}
}

// TestMetricsConnections: idle connections are bounded, and do not delay the daemon's end.
func TestMetricsConnections(t *testing.T) {
	d, address := startMetered(t, countingVM{fakeVM: newFakeVM()}, Config{})
	var conns []net.Conn
	for range maxMetricsConns + 1 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	oldest := conns[0] // which goes for the new one
	_ = oldest.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := oldest.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Errorf("one connection too many: %v", err)
	}
	d.stop()
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the metrics outlive the daemon")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestNoMetrics: without a configured address no port is opened.
func TestNoMetrics(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	if err := d.connect(t).AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if at := d.status(t).Metrics; at != "" {
		t.Errorf("metrics at %s", at)
	}
}

func TestMetricsAddress(t *testing.T) {
	for address, want := range map[string]bool{
		"": true, "127.0.0.1:0": true, "127.0.0.1:9100": true, "127.1.2.3:1": true, "[::1]:0": true,
		"0.0.0.0:9100": false, "[::]:9100": false, ":9100": false, "9100": false, "localhost:9100": false,
		"192.0.2.1:9100": false, "127.0.0.1": false, "127.0.0.1:65536": false, "[::ffff:127.0.0.1]:1": false,
	} {
		if err := (Config{Metrics: address}).Validate(); (err == nil) != want {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestMetricsPortTaken: a daemon that cannot serve its metrics does not start.
func TestMetricsPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := testStore(t, roleFake)
	_, err = s.Start(t.Context(), "dev", Config{Metrics: l.Addr().String()}, nil)
	if err == nil || !strings.Contains(err.Error(), "listen for readers of metrics") {
		t.Errorf("error %v", err)
	}
}

// TestMetricsOfBadText: texts of a VM that no label may have are repaired.
func TestMetricsOfBadText(t *testing.T) {
	s := sample{info: daemonrpc.Info{Name: "dev", Kernel: "6\xff\"\n"}}
	if got := s.gather().String(); !strings.Contains(got, "agentvm_vm_info{image=\"\",kernel=\"6?\\\"\\n\",vm=\"dev\"} 1\n") {
		t.Errorf("got\n%s", got)
	}
}
