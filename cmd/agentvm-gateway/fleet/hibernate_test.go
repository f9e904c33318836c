package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"agentvm/cmd/agentvm-gateway/fleet"
)

// s3 is an S3 that can be made to fail.
type s3 struct {
	backend *s3mem.Backend
	handler http.Handler
	fails   atomic.Bool
}

func newS3(t testing.TB) *s3 {
	t.Helper()
	s := &s3{backend: s3mem.New()}
	if err := s.backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	s.handler = gofakes3.New(s.backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	return s
}

func (s *s3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.fails.Load() {
		w.WriteHeader(http.StatusForbidden) // which is not repeated
		return
	}
	s.handler.ServeHTTP(w, r)
}

// objectStore gives the cluster one.
func (c *cluster) objectStore() *s3 {
	c.t.Helper()
	s := newS3(c.t)
	server := httptest.NewServer(s)
	c.t.Cleanup(server.Close)
	keys := map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
	c.state = &fleet.StateConfig{URL: "s3://bucket/state?endpoint=" + server.URL, Getenv: func(name string) string { return keys[name] }}
	return s
}

// snapshots are the names of the states that the object store has.
func (s *s3) snapshots(t testing.TB) (names []string) {
	t.Helper()
	list, err := s.backend.ListBucket("bucket", &gofakes3.Prefix{HasPrefix: true, Prefix: "state/"}, gofakes3.ListBucketPage{})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range list.Contents {
		if _, name, found := strings.Cut(object.Key, "/snapshots/"); found {
			names = append(names, name)
		}
	}
	return names
}

// podsOf returns the pods that have a record of a sandbox, as the cluster says.
func (c *cluster) podsOf(id string) (list []*servedPod) {
	c.t.Helper()
	found, err := c.client.CoreV1().Pods(c.namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "id.agentvm.dev/" + id})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range found.Items {
		if p.DeletionTimestamp == nil {
			list = append(list, c.pods[p.Name])
		}
	}
	return list
}

// memory reads what is in the VM of a sandbox, and write changes it.
func (c *cluster) memory(id string) string {
	c.t.Helper()
	list := c.podsOf(id)
	if len(list) != 1 {
		c.t.Fatalf("%s is in %d pods", id, len(list))
	}
	list[0].vm.mu.Lock()
	defer list[0].vm.mu.Unlock()
	return list[0].vm.memory
}

func (c *cluster) write(id, text string) {
	c.t.Helper()
	list := c.podsOf(id)
	if len(list) != 1 {
		c.t.Fatalf("%s is in %d pods", id, len(list))
	}
	list[0].vm.mu.Lock()
	defer list[0].vm.mu.Unlock()
	list[0].vm.memory = text
}

func (c *cluster) lease(id string) *coordinationv1.Lease {
	c.t.Helper()
	l, err := c.client.CoordinationV1().Leases(c.namespace).Get(context.Background(), id, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return l
}

// want does a request that has to have a status.
func (g *gateway) want(status int, method, path, tenant, body string) string {
	g.t.Helper()
	code, text := g.do(method, path, tenant, body)
	if code != status {
		g.t.Fatalf("%s %s: %d %s, want %d", method, path, code, text, status)
	}
	return text
}

// TestHibernate has a sandbox leave its pod for the object store, and come back in another one, by either gateway.
func TestHibernate(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.warm(3)
	a, b := c.gateway("a"), c.gateway("b")
	id, token := a.create("red", `{"templateID":"base","metadata":{"for":"test"},"timeout":100,"envVars":{"SECRET":"of the client"},"allow_internet_access":false}`)
	c.write(id, "first")
	was := c.podsOf(id)[0]
	a.want(204, "POST", "/sandboxes/"+id+"/pause", "red", "")
	for name, g := range map[string]*gateway{"a": a, "b": b} {
		if text := g.want(200, "GET", "/sandboxes/"+id, "red", ""); !strings.Contains(text, `"state":"paused"`) || !strings.Contains(text, `"for":"test"`) {
			t.Errorf("%s: %s", name, text)
		}
		g.want(409, "POST", "/sandboxes/"+id+"/pause", "red", "")
		g.want(409, "POST", "/sandboxes/"+id+"/timeout", "red", `{"timeout":5}`)
		g.want(409, "POST", "/sandboxes/"+id+"/fork", "red", "")
		g.want(409, "POST", "/v1/vms/"+id+"/exec", "red", "")
		for _, path := range []string{"connect", "pause"} {
			g.want(404, "POST", "/sandboxes/"+id+"/"+path, "blue", "")
		}
		g.want(404, "POST", "/v1/vms/"+id+"/resume", "blue", "")
		g.want(404, "DELETE", "/sandboxes/"+id, "blue", "")
		g.eventually("it is listed as paused", func() bool {
			return strings.Contains(g.want(200, "GET", "/v2/sandboxes?state=paused", "red", ""), id) && strings.Contains(g.want(200, "GET", "/v1/vms", "red", ""), id)
		})
		if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", id); code != 502 {
			t.Errorf("%s: health: %d %s", name, code, text)
		}
	}
	if list := c.podsOf(id); len(list) != 0 {
		t.Errorf("%d pods have it", len(list))
	}
	l := c.lease(id)
	if text, err := json.Marshal(l); err != nil || strings.Contains(string(text), "of the client") || strings.Contains(string(text), token) {
		t.Errorf("its Lease has secrets: %s %v", text, err)
	}
	if names := s.snapshots(t); len(names) != 1 || names[0] != id+".1" {
		t.Errorf("the object store has %v", names)
	}
	text := b.want(201, "POST", "/v2/sandboxes/"+id+"/connect", "red", `{"timeout":300}`)
	if !strings.Contains(text, token) {
		t.Errorf("another token: %s", text)
	}
	for _, g := range []*gateway{a, b} {
		g.eventually("it runs", func() bool { code, _ := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", id); return code == 204 })
		g.want(200, "POST", "/sandboxes/"+id+"/connect", "red", `{"timeout":10}`)
	}
	now := c.podsOf(id)[0]
	if now == was || c.memory(id) != "first" {
		t.Errorf("the same pod: %v; memory %q", now == was, c.memory(id))
	}
	// And again, by our own API.
	c.write(id, "second")
	if text := b.want(200, "POST", "/v1/vms/"+id+"/pause", "red", ""); !strings.Contains(text, `"state":"paused"`) {
		t.Error(text)
	}
	a.eventually("the first state is removed", func() bool { names := s.snapshots(t); return len(names) == 1 && names[0] == id+".2" })
	if text := a.want(200, "GET", "/v1/vms/"+id, "red", ""); !strings.Contains(text, `"state":"paused"`) {
		t.Error(text)
	}
	if text := a.want(200, "POST", "/v1/vms/"+id+"/resume", "red", `{"lifeSeconds":100}`); !strings.Contains(text, `"state":"running"`) {
		t.Error(text)
	}
	if got := c.memory(id); got != "second" {
		t.Errorf("memory %q", got)
	}
	for name, p := range map[string]*servedPod{"first": was, "second": now} { // it is there what its client has asked for at first
		if note := p.vm.note; !strings.Contains(note, `"SECRET":"of the client"`) || !strings.Contains(note, `"allow_internet_access":false`) {
			t.Errorf("the %s pod has written %s", name, note)
		}
	}
	a.want(204, "DELETE", "/sandboxes/"+id, "red", "")
	for _, g := range []*gateway{a, b} {
		g.eventually("it is gone", func() bool { code, _ := g.do("POST", "/sandboxes/"+id+"/connect", "red", ""); return code == 404 })
	}
	a.eventually("nothing is left of it", func() bool { return c.lease(id) == nil && len(c.podsOf(id)) == 0 && len(s.snapshots(t)) == 0 })
}

// TestHibernateAtEnd has the leader hibernate a sandbox whose time has come, and one that is killed while it is hibernated leave nothing.
func TestHibernateAtEnd(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.warm(3)
	g := c.gateway("a")
	s.fails.Store(true)
	id, _ := g.create("red", `{"templateID":"base","timeout":1,"autoPause":true}`)
	c.write(id, "kept")
	time.Sleep(3 * time.Second)
	if text := g.want(200, "GET", "/sandboxes/"+id, "red", ""); !strings.Contains(text, `"state":"paused"`) {
		t.Errorf("its time is over: %s", text)
	}
	s.fails.Store(false) // nothing is lost while the object store fails
	g.eventually("it is hibernated", func() bool { return len(c.podsOf(id)) == 0 && len(s.snapshots(t)) == 1 })
	g.want(201, "POST", "/sandboxes/"+id+"/connect", "red", `{"timeout":100}`)
	if got := c.memory(id); got != "kept" {
		t.Errorf("memory %q", got)
	}
	s.fails.Store(true)
	if code, text := g.do("POST", "/sandboxes/"+id+"/pause", "red", ""); code != 503 {
		t.Errorf("the object store fails: %d %s", code, text)
	}
	if code, _ := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", id); code != 204 {
		t.Error("it does not run on:", code)
	}
	s.fails.Store(false)
	g.want(204, "POST", "/sandboxes/"+id+"/pause", "red", "")
	g.want(204, "DELETE", "/v1/vms/"+id, "red", "")
	g.want(404, "POST", "/sandboxes/"+id+"/connect", "red", "")
	g.eventually("nothing is left of it", func() bool { return c.lease(id) == nil && len(s.snapshots(t)) == 0 })
}

// TestKeepPaused: a sandbox that stays in the object store too long ends; one that is resumed in time does not, nor does one that was saved later.
func TestKeepPaused(t *testing.T) {
	c := newCluster(t)
	c.keep = 10 * time.Second
	s := c.objectStore()
	c.warm(3)
	g := c.gateway("a")
	used, _ := g.create("red", `{"templateID":"base","timeout":3600}`)
	left, _ := g.create("red", `{"templateID":"base","timeout":3600}`)
	g.want(204, "POST", "/sandboxes/"+left+"/pause", "red", "")
	for end := time.Now().Add(c.keep + 2*time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		g.want(204, "POST", "/sandboxes/"+used+"/pause", "red", "")
		g.want(201, "POST", "/sandboxes/"+used+"/connect", "red", `{"timeout":3600}`)
		c.warm(1) // for the next one
	}
	g.eventually("the other one has ended", func() bool { return c.lease(left) == nil && len(s.snapshots(t)) == 1 })
	g.want(404, "POST", "/sandboxes/"+left+"/connect", "red", "")
	g.want(204, "POST", "/sandboxes/"+used+"/pause", "red", "")
	time.Sleep(c.keep / 3)
	g.want(200, "GET", "/sandboxes/"+used, "red", "")
}

// TestResumeRace lets many clients of several gateways resume one sandbox: one pod restores it, and all clients learn that.
func TestResumeRace(t *testing.T) {
	c := newCluster(t)
	c.objectStore()
	const clients = 6
	c.warm(1 + clients)
	all := []*gateway{c.gateway("a"), c.gateway("b"), c.gateway("c")}
	id, _ := all[0].create("red", `{"templateID":"base","timeout":100}`)
	c.write(id, "kept")
	all[0].want(204, "POST", "/sandboxes/"+id+"/pause", "red", "")
	var wg sync.WaitGroup
	var made atomic.Int64
	for i := range clients {
		wg.Go(func() {
			code, text := all[i%len(all)].do("POST", "/sandboxes/"+id+"/connect", "red", `{"timeout":300}`)
			if code == 201 {
				made.Add(1)
			} else if code != 200 {
				t.Errorf("%d: %d %s", i, code, text)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("%d gateways have resumed it", made.Load())
	}
	if got := c.memory(id); got != "kept" {
		t.Errorf("memory %q", got)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := 0
	for _, p := range c.pods {
		p.vm.mu.Lock()
		taken += p.vm.taken
		p.vm.mu.Unlock()
	}
	if taken != 2 {
		t.Errorf("it was started %d times, and not once and once again", taken)
	}
}

// TestKilledMovers kills the gateway that hibernates, or resumes, a sandbox after each of its writes. What the others find is whole: one pod has the
// sandbox or none, no memory is lost, and none comes back.
func TestKilledMovers(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.move = 2 * time.Second
	other := c.gateway("other")
	for _, move := range []string{"pause", "connect"} {
		for writes := range int64(6) {
			t.Run(move+" "+strconv.FormatInt(writes, 10), func(t *testing.T) {
				c.warm(3)
				id, _ := other.create("red", `{"templateID":"base","timeout":300}`)
				memory := fmt.Sprint(move, writes)
				c.write(id, memory)
				if move == "connect" {
					other.want(204, "POST", "/sandboxes/"+id+"/pause", "red", "")
				}
				var l life
				l.left.Store(1 << 30)
				victim := c.gatewayOf("victim", c.mortal(&l))
				victim.eventually("it sees the sandbox", func() bool { code, _ := victim.do("GET", "/sandboxes/"+id, "red", ""); return code == 200 })
				if writes < 5 {
					l.left.Store(writes)
				}
				code, _ := victim.do("POST", "/sandboxes/"+id+"/"+move, "red", "")
				l.left.Store(-1)
				victim.stop()
				if told := map[string]int{"pause": 204, "connect": 201}[move]; writes == 5 && code != told {
					t.Errorf("it was not killed, and answers %d", code)
				} else if code == told { // what one client learned is true at once, for all
					want := map[string]string{"pause": "paused", "connect": "running"}[move]
					other.eventually("it is "+want, func() bool {
						return strings.Contains(other.want(200, "GET", "/sandboxes/"+id, "red", ""), `"state":"`+want)
					})
				}
				other.eventually("it is resumed", func() bool {
					code, _ := other.do("POST", "/sandboxes/"+id+"/connect", "red", `{"timeout":300}`)
					return code == 200 || code == 201
				})
				other.eventually("it answers", func() bool {
					code, _ := other.do("GET", "/health", "", "", "E2b-Sandbox-Id", id)
					return code == 204
				})
				other.eventually("one pod has it", func() bool { return len(c.podsOf(id)) == 1 })
				if got := c.memory(id); got != memory {
					t.Errorf("memory %q", got)
				}
				other.want(404, "GET", "/sandboxes/"+id, "blue", "")
				other.want(204, "DELETE", "/sandboxes/"+id, "red", "")
				other.eventually("nothing is left", func() bool { return c.lease(id) == nil && len(c.podsOf(id)) == 0 && len(s.snapshots(t)) == 0 })
			})
		}
	}
}

// TestLostAnswer shows that a pause continues although the answer of the API server that it has begun is lost.
func TestLostAnswer(t *testing.T) {
	c := newCluster(t)
	c.objectStore()
	c.warm(2)
	var l life
	l.left.Store(1 << 30)
	g := c.gatewayOf("a", c.mortal(&l))
	id, _ := g.create("red", `{"templateID":"base","timeout":300}`)
	c.write(id, "written")
	g.eventually("it leads, so that it creates nothing by itself", func() bool {
		_, err := c.client.CoordinationV1().Leases(c.namespace).Get(t.Context(), "agentvm-gateway", metav1.GetOptions{})
		return err == nil
	})
	l.mute.Store(true)
	g.want(204, "POST", "/sandboxes/"+id+"/pause", "red", "")
	if l.mute.Load() {
		t.Error("no answer was lost")
	}
	g.want(201, "POST", "/sandboxes/"+id+"/connect", "red", `{"timeout":300}`)
	if got := c.memory(id); got != "written" {
		t.Errorf("memory %q", got)
	}
}

// TestConnectAfterLeftPause has a gateway whose watch has not told it of a pause that another one has left not say that the sandbox runs, for it would
// leave its pod afterwards.
func TestConnectAfterLeftPause(t *testing.T) {
	c := newCluster(t)
	if c.config != nil {
		t.Skip("stands still on client-go's fake only")
	}
	c.objectStore()
	c.move = 2 * time.Second // less than what the gateway remembers of what it has read
	c.warm(2)
	var left, behind life
	left.left.Store(1 << 30)
	behind.left.Store(1 << 30)
	behind.deaf.Store(true)
	victim, g := c.gatewayOf("victim", c.mortal(&left)), c.gatewayOf("behind", c.mortal(&behind))
	id, _ := victim.create("red", `{"templateID":"base","timeout":300}`)
	c.write(id, "written")
	g.eventually("it sees the sandbox", func() bool { code, _ := g.do("GET", "/sandboxes/"+id, "red", ""); return code == 200 })
	left.left.Store(1) // the Lease
	if code, _ := victim.do("POST", "/sandboxes/"+id+"/pause", "red", ""); code == 204 || c.lease(id) == nil {
		t.Fatalf("pause: %d, Lease %v", code, c.lease(id))
	}
	victim.stop()
	g.want(201, "POST", "/sandboxes/"+id+"/connect", "red", `{"timeout":300}`)
	if got := c.memory(id); got != "written" || phase(c.lease(id)) != "running" {
		t.Errorf("memory %q, Lease %v", got, c.lease(id))
	}
}

func phase(l *coordinationv1.Lease) string { return l.Labels[fleet.LabelState] }

// TestLeftMoves has moves mended that a gateway has left in a state in which their pod has ended meanwhile.
func TestLeftMoves(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.move = 5 * time.Second
	c.warm(12)
	g := c.gateway("a")
	// change makes a Lease what a gateway has left a minute ago.
	change := func(id string, do func(*coordinationv1.Lease)) {
		t.Helper()
		g.eventually("the Lease is changed", func() bool {
			l := c.lease(id)
			if l == nil {
				return false
			}
			do(l)
			old := metav1.NewMicroTime(time.Now().Add(-time.Minute))
			l.Spec.RenewTime = &old
			_, err := c.client.CoordinationV1().Leases(c.namespace).Update(t.Context(), l, metav1.UpdateOptions{})
			return err == nil
		})
	}
	remove := func(id string) {
		t.Helper()
		zero := int64(0)
		list, err := c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "id.agentvm.dev/" + id})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if err := c.client.CoreV1().Pods(c.namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
				t.Fatal(err)
			}
		}
	}
	gone := "a-pod-that-is-gone/its-identifier"
	hibernated := func(memory string) string {
		t.Helper()
		id, _ := g.create("red", `{"templateID":"base","timeout":300}`)
		c.write(id, memory)
		g.want(204, "POST", "/sandboxes/"+id+"/pause", "red", "")
		return id
	}
	phase := func(l *coordinationv1.Lease, phase string, holder *string) {
		l.Labels[fleet.LabelState], l.Spec.HolderIdentity = phase, holder
	}

	written := hibernated("written") // and then the gateway was killed, and the pod
	change(written, func(l *coordinationv1.Lease) {
		phase(l, "saving", &gone)
		delete(l.Annotations, "agentvm.dev/state")
	})
	g.want(201, "POST", "/sandboxes/"+written+"/connect", "red", `{"timeout":300}`)
	if got := c.memory(written); got != "written" {
		t.Errorf("memory %q", got)
	}

	loading := hibernated("loading") // and the pod that was to restore it has ended
	change(loading, func(l *coordinationv1.Lease) { phase(l, "loading", &gone) })
	g.want(201, "POST", "/sandboxes/"+loading+"/connect", "red", `{"timeout":300}`)
	if got := c.memory(loading); got != "loading" {
		t.Errorf("memory %q", got)
	}

	unwritten := hibernated("unwritten") // its pod has ended before it was written a second time
	g.want(201, "POST", "/sandboxes/"+unwritten+"/connect", "red", `{"timeout":300}`)
	remove(unwritten)
	change(unwritten, func(l *coordinationv1.Lease) {
		phase(l, "saving", &gone)
		*l.Spec.LeaseTransitions++
	})
	g.eventually("it is gone: its older state is not brought back", func() bool {
		code, _ := g.do("POST", "/sandboxes/"+unwritten+"/connect", "red", "")
		return code == 404 && c.lease(unwritten) == nil
	})

	running := hibernated("running") // and its pod has ended since
	g.want(201, "POST", "/sandboxes/"+running+"/connect", "red", `{"timeout":300}`)
	remove(running)
	g.eventually("it is gone with its pod", func() bool {
		code, _ := g.do("POST", "/sandboxes/"+running+"/connect", "red", "")
		return code == 404 && c.lease(running) == nil
	})

	deleted := hibernated("deleted") // by kubectl
	if err := c.client.CoordinationV1().Leases(c.namespace).Delete(t.Context(), deleted, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.eventually("what no Lease names is swept", func() bool {
		for _, name := range s.snapshots(t) {
			if strings.HasPrefix(name, deleted) || strings.HasPrefix(name, running) || strings.HasPrefix(name, unwritten) {
				return false
			}
		}
		return true
	})

	missing := hibernated("missing") // someone has removed its state
	if _, err := s.backend.DeleteObject("bucket", "state/red/snapshots/"+missing+".1"); err != nil {
		t.Fatal(err)
	}
	if code, text := g.do("POST", "/sandboxes/"+missing+"/connect", "red", ""); code != 500 || !strings.Contains(text, "not in the object store") {
		t.Errorf("its state is missing: %d %s", code, text)
	}
	g.want(204, "DELETE", "/sandboxes/"+missing, "red", "")

	// A pod that was taken for a sandbox which another pod has restored ends, and is never mistaken for that one.
	c.warm(1)
	record, err := json.Marshal(map[string]fleet.Record{written: {Tenant: "red", Template: "base", Ends: time.Now().Add(time.Hour), Resumed: time.Now().Add(-time.Minute)}})
	if err != nil {
		t.Fatal(err)
	}
	g.eventually("a pod is taken", func() bool { // a real cluster's scheduler changes it, too
		list, err := c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: fleet.LabelState + "=" + fleet.StateWarm})
		if err != nil || len(list.Items) == 0 {
			t.Fatal(list, err)
		}
		p := list.Items[0].DeepCopy()
		p.Labels[fleet.LabelState], p.Labels[fleet.LabelTenant], p.Labels["id.agentvm.dev/"+written] = fleet.StateClaimed, "red", ""
		p.Annotations = map[string]string{"agentvm.dev/records": string(record)}
		_, err = c.client.CoreV1().Pods(c.namespace).Update(t.Context(), p, metav1.UpdateOptions{})
		return err == nil
	})
	g.eventually("the other pod is gone", func() bool { return len(c.podsOf(written)) == 1 })
	if got := c.memory(written); got != "written" {
		t.Errorf("memory %q", got)
	}
}
