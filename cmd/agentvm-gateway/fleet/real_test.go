package fleet_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"agentvm/cmd/agentvm-gateway/fleet"
)

// These need Kubernetes' own API server and controllers: make test-kubernetes.

func realCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("AGENTVM_TEST_KUBECONFIG") == "" {
		t.Skip("make test-kubernetes has a cluster")
	}
	return newCluster(t)
}

// pool makes the Deployment of deploy/base, and does for its pods what a kubelet does.
func (c *cluster) pool(replicas int32) {
	c.t.Helper()
	text, err := os.ReadFile("../../../deploy/base/pool.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.Unmarshal([]byte(strings.Split(string(text), "\n---\n")[0]), &d); err != nil {
		c.t.Fatal(err)
	}
	d.Spec.Replicas = &replicas
	d.Spec.Template.Spec.NodeSelector = map[string]string{"no": "node"} // these pods are the test's
	if _, err := c.client.AppsV1().Deployments(c.namespace).Create(c.t.Context(), &d, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				time.Sleep(200 * time.Millisecond)
				continue
			}
			for i := range list.Items {
				p := &list.Items[i]
				c.mu.Lock()
				known := c.pods[p.Name] != nil
				number := c.count + 1
				if !known {
					c.count++
				}
				c.mu.Unlock()
				if !known && p.DeletionTimestamp == nil {
					c.serve(p, fmt.Sprintf("127.1.%d.%d", 1+number/250, 1+number%250))
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	c.t.Cleanup(func() { cancel(); <-done })
}

// ready is how many pods of the pool wait.
func (c *cluster) ready() (n int) {
	list, err := c.client.CoreV1().Pods(c.namespace).List(c.t.Context(), metav1.ListOptions{LabelSelector: fleet.LabelState + "=" + fleet.StateWarm})
	if err != nil {
		return -1
	}
	for _, p := range list.Items {
		if p.Status.PodIP != "" && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// TestPool has the Deployment replace a pod that was claimed, and leave the claimed one alone, also when it is scaled to nothing.
func TestPool(t *testing.T) {
	c := realCluster(t)
	c.pool(3)
	g := c.gateway("a")
	g.eventually("three pods wait", func() bool { return c.ready() == 3 })
	id, _ := g.create("red", `{"templateID":"base","timeout":300}`)
	g.eventually("the pool is whole again", func() bool { return c.ready() == 3 })
	claimed, err := c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "id.agentvm.dev/" + id})
	if err != nil || len(claimed.Items) != 1 {
		t.Fatal(claimed, err)
	}
	g.eventually("the claimed pod is no ReplicaSet's", func() bool {
		p, err := c.client.CoreV1().Pods(c.namespace).Get(t.Context(), claimed.Items[0].Name, metav1.GetOptions{})
		return err == nil && metav1.GetControllerOf(p) == nil
	})
	if _, err := c.client.AppsV1().Deployments(c.namespace).Patch(t.Context(), "agentvm-pool-base", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	g.eventually("the pool is empty", func() bool { return c.ready() == 0 })
	if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", id); code != 204 {
		t.Errorf("the claimed pod was scaled away: %d %s", code, text)
	}
}

// TestRights has the gateways' service account refused what its work does not need.
func TestRights(t *testing.T) {
	c := realCluster(t)
	ctx := t.Context()
	_, makesPod := c.gateways.CoreV1().Pods(c.namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: restricted()}, metav1.CreateOptions{})
	_, readsSecrets := c.gateways.CoreV1().Secrets(c.namespace).List(ctx, metav1.ListOptions{})
	_, otherNamespace := c.gateways.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	_, scales := c.gateways.AppsV1().Deployments(c.namespace).List(ctx, metav1.ListOptions{})
	_, nodes := c.gateways.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	_, leases := c.gateways.CoordinationV1().Leases("kube-node-lease").List(ctx, metav1.ListOptions{})
	_, configs := c.gateways.CoreV1().ConfigMaps(c.namespace).List(ctx, metav1.ListOptions{})
	for what, err := range map[string]error{
		"make a pod": makesPod, "read secrets": readsSecrets, "list pods elsewhere": otherNamespace, "list deployments": scales, "list nodes": nodes, "list leases elsewhere": leases,
		"read ConfigMaps": configs,
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("the gateway may %s: %v", what, err)
		}
	}
}

// TestChaos kills gateways without a goodbye, pods, and stops the API server, while clients make, use and end sandboxes. AGENTVM_CHAOS_ROUNDS
// says how often. A sandbox of which a client has learned is found, unless its pod was killed; no pod is two sandboxes; no tenant reaches another's.
func TestChaos(t *testing.T) {
	c := realCluster(t)
	rounds := 20
	if n, err := strconv.Atoi(os.Getenv("AGENTVM_CHAOS_ROUNDS")); err == nil {
		rounds = n
	}
	c.pool(6)
	gateways := []*gateway{c.gateway("g0"), c.gateway("g1")}
	gateways[0].eventually("the pool is there", func() bool { return c.ready() == 6 })
	type promised struct{ id, token, tenant string }
	var alive []promised
	counts := map[string]int{}
	for round := range rounds {
		var wg sync.WaitGroup
		var mu sync.Mutex
		for i := range 3 {
			wg.Go(func() {
				tenant := []string{"red", "blue"}[(round+i)%2]
				code, text := gateways[i%2].do("POST", "/v2/sandboxes", tenant, `{"templateID":"base","timeout":3600}`)
				mu.Lock()
				defer mu.Unlock()
				if code != 201 {
					counts[fmt.Sprint("create ", code)]++
					return
				}
				id := between(text, `"sandboxID":"`, `"`)
				alive = append(alive, promised{id, between(text, `"envdAccessToken":"`, `"`), tenant})
				counts["created"]++
			})
		}
		switch round % 3 {
		case 0: // a gateway ends in the middle, another one begins
			gateways[round/3%2].stop()
			wg.Wait()
			gateways[round/3%2] = c.gateway(fmt.Sprint("g", round))
			counts["gateways killed"]++
		case 1: // the API server stands still
			all := func(int) bool { return true }
			if signal("kube-apiserver", syscall.SIGSTOP, all) != 1 {
				t.Fatal("there is no API server")
			}
			time.Sleep(300 * time.Millisecond)
			signal("kube-apiserver", syscall.SIGCONT, all)
			wg.Wait()
			counts["API server stopped"]++
		case 2: // the pod of a sandbox is deleted
			wg.Wait()
			if len(alive) > 0 {
				list, err := c.client.CoreV1().Pods(c.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "id.agentvm.dev/" + alive[0].id})
				if err != nil || len(list.Items) != 1 {
					t.Fatalf("round %d: %s was promised: %d pods, %v", round, alive[0].id, len(list.Items), err)
				}
				zero := int64(0)
				if err := c.client.CoreV1().Pods(c.namespace).Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
					t.Fatal(err)
				}
				alive = alive[1:]
				counts["pods killed"]++
			}
		}
		for _, p := range alive {
			g := gateways[round%2]
			other := map[string]string{"red": "blue", "blue": "red"}[p.tenant]
			g.eventually(p.id+" is found", func() bool {
				code, _ := g.do("GET", "/sandboxes/"+p.id, p.tenant, "")
				return code == 200
			})
			if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", p.id); code != 204 {
				t.Errorf("round %d: %s: %d %s", round, p.id, code, text)
			}
			if code, text := g.do("GET", "/sandboxes/"+p.id, other, ""); code != 404 {
				t.Errorf("round %d: %s by another tenant: %d %s", round, p.id, code, text)
			}
		}
		for len(alive) > 8 {
			p := alive[0]
			alive = alive[1:]
			g := gateways[(round+1)%2]
			g.eventually(p.id+" is killed", func() bool {
				code, _ := g.do("DELETE", "/sandboxes/"+p.id, p.tenant, "")
				return code == 204 || code == 404
			})
			counts["killed by their clients"]++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.pods {
		p.vm.mu.Lock()
		if p.vm.taken > 1 {
			t.Errorf("pod %s was started as %d sandboxes", name, p.vm.taken)
		}
		p.vm.mu.Unlock()
	}
	t.Logf("%d rounds: %v", rounds, counts)
}

func between(text, before, after string) string {
	_, rest, _ := strings.Cut(text, before)
	found, _, _ := strings.Cut(rest, after)
	return found
}

// TestClaimFigures measures claims, from a client's request to the answer of the pod's first request, with pods without VMs: what the gateway, the
// API server and etcd cost. The last row is a thousand claims, which have a minute.
func TestClaimFigures(t *testing.T) {
	c := realCluster(t)
	g := c.gateway("a")
	for _, row := range []struct{ at, total int }{{1, 40}, {20, 40}, {50, 100}, {20, 1000}} {
		at, total := row.at, row.total
		c.warm(total)
		g.eventually("they wait", func() bool { return c.ready() >= total })
		time.Sleep(time.Second)
		var mu sync.Mutex
		var took []time.Duration
		slots := make(chan struct{}, at)
		var wg sync.WaitGroup
		first := time.Now()
		for range total {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				began := time.Now()
				code, text := g.do("POST", "/v2/sandboxes", "red", `{"templateID":"base","timeout":3600,"envVars":{"A":"b"}}`)
				if code != 201 {
					t.Errorf("%d %s", code, text)
					return
				}
				if code, text := g.do("GET", "/health", "", "", "E2b-Sandbox-Id", between(text, `"sandboxID":"`, `"`)); code != 204 {
					t.Errorf("%d %s", code, text)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			})
		}
		wg.Wait()
		all := time.Since(first)
		if len(took) == 0 {
			t.Fatal("no claim succeeded")
		}
		if total >= 1000 && all > time.Minute*time.Duration(total)/1000 {
			t.Errorf("%d claims took %v", total, all)
		}
		slices.Sort(took)
		load, _ := os.ReadFile("/proc/loadavg")
		t.Logf("%d at once: p50 %v, p99 %v of %d in %v; load %s", at, took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond), len(took),
			all.Round(time.Millisecond), strings.TrimSpace(string(load)))
	}
}
