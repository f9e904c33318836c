package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaseNames are the names of all Leases but the leader's.
func (c *cluster) leaseNames() (names []string) {
	c.t.Helper()
	list, err := c.client.CoordinationV1().Leases(c.namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range list.Items {
		if l.Name != "agentvm-gateway" {
			names = append(names, l.Name)
		}
	}
	return names
}

// TestSnapshots: sandboxes are made of a snapshot by any gateway, also when the one that it was made of has changed or ended, and by no other tenant.
func TestSnapshots(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.warm(6)
	a, b := c.gateway("a"), c.gateway("b")
	id, _ := a.create("red", `{"templateID":"base","timeout":300,"metadata":{"of":"the first"}}`)
	c.write(id, "as it was")
	path := "/sandboxes/" + id + "/snapshots"
	if got := a.want(201, "POST", path, "red", `{"name":"prepared"}`); got != `{"names":["prepared"],"snapshotID":"prepared"}`+"\n" {
		t.Error(got)
	}
	a.want(409, "POST", path, "red", `{"name":"prepared"}`)
	a.want(409, "POST", path, "red", `{"name":"base"}`)
	a.want(400, "POST", path, "red", `{"name":"No Name"}`)
	a.want(404, "POST", path, "blue", `{"name":"theirs"}`)
	c.write(id, "changed")
	var made []string
	for range 2 {
		one, _ := b.create("red", `{"templateID":"prepared","timeout":300,"metadata":{"of":"a snapshot"}}`)
		if got := c.memory(one); got != "as it was" {
			t.Errorf("memory %q", got)
		}
		if got := b.want(200, "GET", "/sandboxes/"+one, "red", ""); !strings.Contains(got, `"of":"a snapshot"`) || !strings.Contains(got, `"state":"running"`) {
			t.Error(got)
		}
		made = append(made, one)
	}
	if got := c.memory(id); got != "changed" {
		t.Errorf("memory %q", got)
	}
	a.want(404, "POST", "/v2/sandboxes", "blue", `{"templateID":"prepared"}`)
	a.want(404, "DELETE", "/templates/prepared", "blue", "")
	a.want(404, "POST", "/v2/sandboxes", "red", `{"templateID":"nothing"}`)
	for _, l := range c.leaseNames() { // what a cluster's own names are is no one's way in
		a.want(404, "POST", "/sandboxes/"+l+"/connect", "red", "")
		a.want(404, "POST", "/v2/sandboxes", "red", `{"templateID":"`+l+`"}`)
	}
	list := func(g *gateway, tenant, query string) string {
		return g.want(200, "GET", "/snapshots"+query, tenant, "")
	}
	if got := list(b, "red", "?sandboxID="+id); !strings.Contains(got, "prepared") {
		t.Error(got)
	}
	if got := list(a, "red", "?sandboxID="+made[0]) + list(a, "blue", ""); got != "[]\n[]\n" {
		t.Error(got)
	}
	// A sandbox of a snapshot is one like others.
	b.want(204, "POST", "/sandboxes/"+made[0]+"/pause", "red", "")
	a.want(201, "POST", "/sandboxes/"+made[0]+"/connect", "red", `{"timeout":300}`)
	if got := c.memory(made[0]); got != "as it was" {
		t.Errorf("memory %q", got)
	}
	a.want(201, "POST", "/sandboxes/"+made[0]+"/snapshots", "red", `{}`)
	if got := list(a, "red", "?limit=1"); strings.Contains(got, "prepared") || !strings.Contains(got, "snapshotID") {
		t.Error("the newest is the first:", got)
	}
	a.want(204, "POST", "/sandboxes/"+made[1]+"/pause", "red", "")
	a.want(409, "POST", "/sandboxes/"+made[1]+"/snapshots", "red", `{}`)
	a.want(204, "DELETE", "/templates/prepared", "red", "")
	a.want(404, "DELETE", "/templates/prepared", "red", "")
	b.want(404, "POST", "/v2/sandboxes", "red", `{"templateID":"prepared"}`)
	a.want(201, "POST", "/sandboxes/"+made[1]+"/connect", "red", `{"timeout":300}`) // what was made of it stays
	for _, one := range append(made, id) {
		a.want(204, "DELETE", "/sandboxes/"+one, "red", "")
	}
	a.eventually("only the other snapshot is left", func() bool { return len(c.leaseNames()) == 1 && len(s.snapshots(t)) == 1 })
}

// TestSnapshotsWithoutAStore: a cluster without an object store says that it keeps none.
func TestSnapshotsWithoutAStore(t *testing.T) {
	c := newCluster(t)
	c.warm(1)
	g := c.gateway("a")
	id, _ := g.create("red", `{"templateID":"base","timeout":300}`)
	g.want(501, "POST", "/sandboxes/"+id+"/snapshots", "red", `{}`)
	g.want(404, "DELETE", "/templates/x", "red", "")
	if got := g.want(200, "GET", "/snapshots", "red", ""); got != "[]\n" {
		t.Error(got)
	}
}

// TestKilledSnapshots kills the gateway that makes a snapshot after each of its writes, and makes the object store fail: a snapshot of which no client has learned
// leaves nothing, the sandbox runs on, and the name is free again.
func TestKilledSnapshots(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.move = 2 * time.Second
	c.warm(3)
	other := c.gateway("other")
	id, _ := other.create("red", `{"templateID":"base","timeout":300}`)
	c.write(id, "as it was")
	path := "/sandboxes/" + id + "/snapshots"
	s.fails.Store(true)
	if code, text := other.do("POST", path, "red", `{"name":"x"}`); code < 500 {
		t.Errorf("the object store fails: %d %s", code, text)
	}
	s.fails.Store(false)
	if names := c.leaseNames(); len(names) != 0 {
		t.Errorf("left: %q", names)
	}
	for writes := range int64(3) {
		var l life
		l.left.Store(1 << 30)
		victim := c.gatewayOf("victim", c.mortal(&l))
		victim.eventually("it sees the sandbox", func() bool { code, _ := victim.do("GET", "/sandboxes/"+id, "red", ""); return code == 200 })
		if writes < 2 {
			l.left.Store(writes)
		}
		code, text := victim.do("POST", path, "red", `{"name":"x"}`)
		l.left.Store(-1)
		victim.stop()
		if want := writes == 2; (code == 201) != want {
			t.Fatalf("after %d writes: %d %s", writes, code, text)
		}
		if code == 201 {
			break
		}
		other.eventually("nothing is left", func() bool { return len(c.leaseNames()) == 0 && len(s.snapshots(t)) == 0 })
		if got := c.memory(id); got != "as it was" {
			t.Errorf("memory %q", got)
		}
	}
	one, _ := other.create("red", `{"templateID":"x","timeout":300}`)
	if got := c.memory(one); got != "as it was" {
		t.Errorf("memory %q", got)
	}
}

// TestSnapshotRace has many clients make a snapshot of one name, of which one succeeds.
func TestSnapshotRace(t *testing.T) {
	c := newCluster(t)
	s := c.objectStore()
	c.warm(2)
	gateways := []*gateway{c.gateway("a"), c.gateway("b")}
	id, _ := gateways[0].create("red", `{"templateID":"base","timeout":300}`)
	gateways[1].eventually("both see the sandbox", func() bool { code, _ := gateways[1].do("GET", "/sandboxes/"+id, "red", ""); return code == 200 })
	var clients sync.WaitGroup
	var made, refused atomic.Int64
	for i := range 8 {
		clients.Go(func() {
			switch code, text := gateways[i%2].do("POST", "/sandboxes/"+id+"/snapshots", "red", `{"name":"one"}`); code {
			case 201:
				made.Add(1)
			case 409:
				refused.Add(1)
			default:
				t.Error(code, text)
			}
		})
	}
	clients.Wait()
	if got := fmt.Sprint(made.Load(), refused.Load(), len(s.snapshots(t))); got != "1 7 1" {
		t.Errorf("made, refused, states: %s", got)
	}
}
