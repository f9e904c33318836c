package fleet_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"agentvm/cmd/agentvm-gateway/fleet"
	"agentvm/internal/httpserver/servertest"
)

// TestLife is a sandbox's, seen by two gateways that know of each other only what the cluster says.
func TestLife(t *testing.T) {
	c := newCluster(t)
	c.warm(2)
	a, b := c.gateway("a"), c.gateway("b")
	id, token := a.create("red", `{"templateID":"base","metadata":{"for":"test"},"timeout":100,"envVars":{"A":"b"}}`)
	for name, g := range map[string]*gateway{"a": a, "b": b} { // at once: b's watch may not have it
		if code, text := g.do("GET", "/sandboxes/"+id, "red", ""); code != 200 || !strings.Contains(text, `"state":"running"`) || !strings.Contains(text, token) || !strings.Contains(text, `"for":"test"`) {
			t.Errorf("%s: %d %s", name, code, text)
		}
		if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", id); code != 204 {
			t.Errorf("%s: health: %d %s", name, code, text)
		}
	}
	b.eventually("b lists it", func() bool {
		code, text := b.do("GET", "/v2/sandboxes?metadata=for%3Dtest", "red", "")
		return code == 200 && strings.Contains(text, id)
	})
	if code, text := b.do("GET", "/x", "", "", "Host", "8000-"+id+".test"); code != 200 || text != `port 8000 path /x host 8000-`+id+`.test ticket ""` {
		t.Errorf("port: %d %s", code, text)
	}
	if code, text := b.do("GET", "/sandboxes/"+id, "red", ""); code != 200 || !strings.Contains(text, `"allowInternetAccess":true`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := a.do("PUT", "/sandboxes/"+id+"/network", "red", `{"denyOut":["0.0.0.0/0"]}`); code != 204 {
		t.Errorf("network: %d %s", code, text)
	}
	if code, text := b.do("GET", "/sandboxes/"+id, "red", ""); code != 200 || !strings.Contains(text, `"allowInternetAccess":false`) {
		t.Errorf("its network was closed: %d %s", code, text)
	}
	for _, query := range []string{"", "&signature=", "&signature=v1_wrong"} {
		if code, text := b.do("GET", "/files?path=/tmp/x"+query, "", ""); code != 401 {
			t.Errorf("a file without a token, %q: %d %s", query, code, text)
		}
	}
	for _, step := range []struct {
		g            *gateway
		method, path string
		body         string
		want         int
	}{
		{b, "POST", "/sandboxes/" + id + "/pause", `{"memory":false}`, 400},
		{b, "POST", "/sandboxes/" + id + "/timeout", `{"timeout":200}`, 204},
		{a, "POST", "/sandboxes/" + id + "/pause", ``, 204},
		{b, "POST", "/sandboxes/" + id + "/pause", ``, 409},
		{b, "POST", "/v2/sandboxes/" + id + "/connect", `{"timeout":300}`, 201},
		{a, "POST", "/sandboxes/" + id + "/connect", `{"timeout":10}`, 200},
		{a, "POST", "/sandboxes/" + id + "/nothing", ``, 501},
		{a, "DELETE", "/sandboxes/" + id, ``, 204},
		{a, "DELETE", "/sandboxes/" + id, ``, 404},
	} {
		ok := false
		for range 500 { // the other gateway's watch may be behind
			code, text := step.g.do(step.method, step.path, "red", step.body)
			if ok = code == step.want; ok {
				break
			}
			t.Log(step.method, step.path, code, text)
			time.Sleep(20 * time.Millisecond)
		}
		if !ok {
			t.Fatalf("%s %s: never %d", step.method, step.path, step.want)
		}
	}
	b.eventually("it is gone for b", func() bool {
		code, text := b.do("GET", "/health", "", "", "E2b-Sandbox-Id", id)
		return code == 502 && strings.Contains(text, "The sandbox was not found")
	})
}

// TestEarlyAnswer: a server in a sandbox may answer before the end of a request.
func TestEarlyAnswer(t *testing.T) {
	c := newCluster(t)
	c.warm(1)
	g := c.gateway("a")
	id, _ := g.create("red", `{"templateID":"base"}`)
	body, rest := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://localhost/x", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Host, r.ContentLength = "8000-"+id+".test", 2
	go func() { _, _ = rest.Write([]byte("x")) }()
	client := *g.client
	client.Timeout = 20 * time.Second // less than what a body that stalls has
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer rest.Close()
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.HasPrefix(string(text), "port 8000") {
		t.Errorf("%q, %v", text, err)
	}
}

// TestTenants has what the key of one tenant, or none, does with a sandbox of another.
func TestTenants(t *testing.T) {
	c := newCluster(t)
	c.warm(2)
	g := c.gateway("a")
	id, token := g.create("red", `{"templateID":"base"}`)
	other, otherToken := g.create("blue", `{"templateID":"base"}`)
	for _, request := range []struct{ method, path string }{
		{"GET", "/sandboxes/" + id}, {"DELETE", "/sandboxes/" + id}, {"POST", "/sandboxes/" + id + "/timeout"}, {"POST", "/sandboxes/" + id + "/pause"},
		{"POST", "/sandboxes/" + id + "/fork"}, {"POST", "/v2/sandboxes/" + id + "/connect"}, {"PUT", "/sandboxes/" + id + "/network"}, {"GET", "/sandboxes/" + id + "/metrics"},
		{"GET", "/v1/vms/" + id}, {"DELETE", "/v1/vms/" + id}, {"POST", "/v1/vms/" + id + "/exec"},
	} {
		if code, text := g.do(request.method, request.path, "blue", ""); code != 404 {
			t.Errorf("%s %s by another tenant: %d %s", request.method, request.path, code, text)
		}
		if code, text := g.do(request.method, request.path, "", ""); code != 401 {
			t.Errorf("%s %s without a key: %d %s", request.method, request.path, code, text)
		}
	}
	if code, text := g.do("GET", "/v2/sandboxes", "blue", ""); code != 200 || strings.Contains(text, id) || !strings.Contains(text, other) {
		t.Error("list:", code, text)
	}
	for name, headers := range map[string][]string{
		"no token":                     {"E2b-Sandbox-Id", id},
		"another's token":              {"E2b-Sandbox-Id", id, "X-Access-Token", otherToken},
		"the tenant's key":             {"E2b-Sandbox-Id", id, "X-Access-Token", "the-key-of-tenant-red"},
		"the pod's own key":            {"E2b-Sandbox-Id", id, "X-Access-Token", "a-key-of-the-pod-itself", "X-Api-Key", "a-key-of-the-pod-itself"},
		"the token for another's":      {"E2b-Sandbox-Id", other, "X-Access-Token", token},
		"a name that is not to be had": {"E2b-Sandbox-Id", id, "Agentvm-New", "x=y", "Agentvm-Ticket", "x"},
	} {
		if code, text := g.do("POST", "/process.Process/List", "", `{}`, append(headers, "Content-Type", "application/json")...); code != 401 {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, text := g.do("GET", "/sandboxes/"+id, "red", "", "Host", "evil.example"); code != 421 {
		t.Error("another name:", code, text)
	}
	if code, text := g.do("POST", "/sandboxes", "red", "{}", "Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"); code != 403 {
		t.Error("another origin:", code, text)
	}
	// A pod refuses who has no ticket, whatever else it has.
	for _, p := range c.pods {
		for _, ticket := range []string{"", "x"} {
			r, _ := http.NewRequest("GET", "http://localhost/v2/sandboxes", nil)
			r.Header.Set("X-Api-Key", "a-key-of-the-pod-itself")
			r.Header.Set("Agentvm-Ticket", ticket)
			w := newRecorder()
			p.Handler().ServeHTTP(w, r)
			if w.code != 403 {
				t.Errorf("ticket %q: %d", ticket, w.code)
			}
		}
	}
}

// TestClaimRace has many clients of several gateways want the same few pods: no pod becomes two sandboxes, and none is lost.
func TestClaimRace(t *testing.T) {
	c := newCluster(t)
	const warm, gateways, clients = 12, 3, 12
	c.warm(warm)
	var all []*gateway
	for i := range gateways {
		all = append(all, c.gateway(fmt.Sprint("g", i)))
	}
	var wg sync.WaitGroup
	ids := make([]string, clients)
	for i := range clients {
		wg.Go(func() {
			code, text := all[i%gateways].do("POST", "/v2/sandboxes", "red", `{"templateID":"base","timeout":100}`)
			var made struct{ SandboxID string }
			if err := json.Unmarshal([]byte(text), &made); code != 201 || err != nil {
				t.Errorf("%d: %d %s", i, code, text)
			}
			ids[i] = made.SandboxID
		})
	}
	wg.Wait()
	pods := map[string]bool{}
	list, err := c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: fleet.LabelState + "=" + fleet.StateClaimed})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		for label := range p.Labels {
			if id, found := strings.CutPrefix(label, "id.agentvm.dev/"); found {
				if pods[id] {
					t.Errorf("%s is in two pods", id)
				}
				pods[id] = true
			}
		}
		if taken := c.pods[p.Name].vm.taken; taken != 1 {
			t.Errorf("%s has made %d sandboxes", p.Name, taken)
		}
	}
	for _, id := range ids {
		if !pods[id] {
			t.Errorf("%s was promised and is in no pod", id)
		}
	}
	if code, text := all[0].do("POST", "/v2/sandboxes", "red", `{"templateID":"base"}`); code != 503 {
		t.Errorf("without a warm pod: %d %s", code, text)
	}
}

// TestEnd has sandboxes end by their time, at the next look and by the leader, and be paused where they want that.
func TestEnd(t *testing.T) {
	c := newCluster(t)
	c.warm(2)
	g := c.gateway("a")
	id, _ := g.create("red", `{"templateID":"base","timeout":1}`)
	paused, _ := g.create("red", `{"templateID":"base","timeout":1,"autoPause":true}`)
	time.Sleep(1100 * time.Millisecond)
	if code, text := g.do("GET", "/sandboxes/"+id, "red", ""); code != 404 {
		t.Errorf("its time is over: %d %s", code, text)
	}
	g.eventually("the leader deletes the pod", func() bool {
		list, err := c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 1
	})
	g.eventually("the other one is paused", func() bool {
		code, text := g.do("GET", "/sandboxes/"+paused, "red", "")
		return code == 200 && strings.Contains(text, `"state":"paused"`)
	})
	if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", paused); code != 502 {
		t.Errorf("a paused one answers: %d %s", code, text)
	}
	g.eventually("it is resumed", func() bool {
		code, _ := g.do("POST", "/sandboxes/"+paused+"/connect", "red", `{"timeout":100}`)
		return code == 201 || code == 200
	})
	if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", paused); code != 204 {
		t.Errorf("it was resumed: %d %s", code, text)
	}
}

// TestGatewayEnds has a sandbox survive all gateways, and its forks be found by new ones.
func TestGatewayEnds(t *testing.T) {
	c := newCluster(t)
	c.warm(1)
	a := c.gateway("a")
	id, token := a.create("red", `{"templateID":"base","timeout":100}`)
	code, text := a.do("POST", "/sandboxes/"+id+"/fork", "red", `{"count":2,"timeout":100}`)
	var forks []struct{ Sandbox struct{ SandboxID string } }
	if err := json.Unmarshal([]byte(text), &forks); code != 201 || err != nil || len(forks) != 2 {
		t.Fatalf("fork: %d %s %v", code, text, err)
	}
	a.stop()
	b := c.gateway("b")
	for _, one := range []string{id, forks[0].Sandbox.SandboxID, forks[1].Sandbox.SandboxID} {
		if code, text := b.do("GET", "/health", "", "", "E2b-Sandbox-Id", one); code != 204 {
			t.Errorf("%s: %d %s", one, code, text)
		}
		if code, text := b.do("GET", "/sandboxes/"+one, "blue", ""); code != 404 {
			t.Errorf("%s by another tenant: %d %s", one, code, text)
		}
	}
	if code, text := b.do("GET", "/sandboxes/"+id, "red", ""); code != 200 || !strings.Contains(text, token) {
		t.Errorf("%d %s", code, text)
	}
	// The pod stays while one of them lives.
	if code, text := b.do("DELETE", "/sandboxes/"+id, "red", ""); code != 204 {
		t.Fatal(code, text)
	}
	if code, text := b.do("GET", "/health", "", "", "E2b-Sandbox-Id", forks[1].Sandbox.SandboxID); code != 204 {
		t.Errorf("the fork of one that was killed: %d %s", code, text)
	}
	if code, _ := b.do("GET", "/health", "", "", "E2b-Sandbox-Id", id); code != 502 {
		t.Error("it was killed:", code)
	}
}

// recorder is a response in memory.
type recorder struct {
	header http.Header
	code   int
}

func newRecorder() *recorder                    { return &recorder{header: http.Header{}} }
func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(b []byte) (int, error) { return len(b), nil }

// TestStrangers: who has no tenant's key gets nothing, and keeps no tenant out.
func TestStrangers(t *testing.T) {
	g := newCluster(t).gateway("one")
	servertest.Attack(t, servertest.Target{
		Address: g.address, Host: "localhost", Good: "GET /v2/sandboxes", Post: "POST /sandboxes", Owner: "the-key-of-tenant-red", Crowd: 1100,
		Show: func(key, path string) (string, []string) { return path, []string{"X-Api-Key: " + key} },
	})
}
