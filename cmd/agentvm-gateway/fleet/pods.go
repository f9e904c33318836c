package fleet

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// pods are those of the namespace as a watch knows them, and as this gateway has changed them since: what it has written is seen by its own
// next request, although the watch may be behind.
type pods struct {
	client    kubernetes.Interface
	namespace string
	informer  cache.SharedIndexInformer

	mu      sync.Mutex
	written map[types.UID]writing // newer than the watch, perhaps
	missing map[string]time.Time  // sandboxes that the cluster has not; none of these can come
	changed chan struct{}         // closed at the next event of the watch
}

// writing is a pod as this gateway has written it; nil: it has deleted it.
type writing struct {
	pod *corev1.Pod
	at  time.Time
}

const (
	indexSandbox = "sandbox"
	indexState   = "state"

	resync       = 10 * time.Minute
	writtenStays = time.Minute     // longer than a watch is behind
	aheadTime    = 5 * time.Second // how long a pod is believed in that only this gateway knows
	missingStays = time.Minute
	maxMissing   = 10000
)

func newPods(client kubernetes.Interface, namespace string) (*pods, error) {
	p := &pods{client: client, namespace: namespace, written: map[types.UID]writing{}, missing: map[string]time.Time{}, changed: make(chan struct{})}
	access := client.CoreV1().Pods(namespace)
	p.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = LabelPool
			return access.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = LabelPool
			return access.Watch(ctx, o)
		},
	}, client), &corev1.Pod{}, resync, cache.Indexers{})
	err := p.informer.AddIndexers(cache.Indexers{
		indexSandbox: func(object any) ([]string, error) {
			list, err := recordsOf(object.(*corev1.Pod))
			if err != nil {
				return nil, nil // what someone else has written is no sandbox
			}
			return sortedIDs(list), nil
		},
		indexState: func(object any) ([]string, error) {
			pod := object.(*corev1.Pod)
			return []string{stateKey(pod.Labels[LabelState], pod.Labels[LabelPool])}, nil
		},
	})
	if err != nil {
		return nil, err
	}
	_, err = p.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { p.wake() }, UpdateFunc: func(any, any) { p.wake() }, DeleteFunc: func(any) { p.wake() },
	})
	return p, err
}

func stateKey(state, pool string) string { return state + "/" + pool }

// run watches until ctx ends. ready is called when the first list is there.
func (p *pods) run(ctx context.Context, ready func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.informer.RunWithContext(ctx)
	}()
	defer func() { <-done }()
	if !cache.WaitForCacheSync(ctx.Done(), p.informer.HasSynced) {
		return ctx.Err()
	}
	ready()
	<-ctx.Done()
	return nil
}

func (p *pods) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// next is closed at the watch's next event.
func (p *pods) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// wrote notes what this gateway has written.
func (p *pods) wrote(uid types.UID, pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for old, w := range p.written {
		if now.Sub(w.at) > writtenStays {
			delete(p.written, old)
		}
	}
	p.written[uid] = writing{pod, now}
}

// newest is the newest version of a pod that is known here; nil: it is deleted or is being deleted.
func (p *pods) newest(pod *corev1.Pod) *corev1.Pod {
	p.mu.Lock()
	w, found := p.written[pod.UID]
	p.mu.Unlock()
	if found && (w.pod == nil || newer(w.pod, pod)) {
		pod = w.pod
	}
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	return pod
}

func newer(a, b *corev1.Pod) bool {
	x, xErr := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, yErr := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return xErr == nil && yErr == nil && x > y
}

// list returns the pods of a state and a template, "" for all.
func (p *pods) list(state, pool string) (list []*corev1.Pod) {
	var objects []any
	if pool != "" {
		objects, _ = p.informer.GetIndexer().ByIndex(indexState, stateKey(state, pool))
	} else {
		objects = p.informer.GetStore().List()
	}
	for _, object := range objects {
		if pod := p.newest(object.(*corev1.Pod)); pod != nil && pod.Labels[LabelState] == state {
			list = append(list, pod)
		}
	}
	return list
}

// find returns a sandbox's pod. What the watch does not know may have been made by another gateway just now: then the cluster is asked.
// The pod is nil when there is none.
func (p *pods) find(ctx context.Context, id string) (*corev1.Pod, error) {
	objects, err := p.informer.GetIndexer().ByIndex(indexSandbox, id)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		pod := p.newest(object.(*corev1.Pod))
		if pod == nil {
			return nil, nil
		}
		if _, has := pod.Labels[labelSandbox+id]; has {
			return pod, nil
		}
	}
	p.mu.Lock()
	for _, w := range p.written {
		if w.pod == nil || time.Since(w.at) > aheadTime {
			continue
		}
		if _, has := w.pod.Labels[labelSandbox+id]; has && w.pod.DeletionTimestamp == nil {
			p.mu.Unlock()
			return w.pod, nil
		}
	}
	gone := time.Since(p.missing[id]) < missingStays
	p.mu.Unlock()
	if gone {
		return nil, nil
	}
	found, err := p.client.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelSandbox + id, Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("the pod of %s: %w", id, err)
	}
	for i := range found.Items {
		if pod := p.newest(&found.Items[i]); pod != nil {
			return pod, nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.missing) >= maxMissing {
		clear(p.missing)
	}
	p.missing[id] = time.Now()
	return nil, nil
}

// patch writes a change of a pod.
func (p *pods) patch(ctx context.Context, pod *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	made, err := p.client.CoreV1().Pods(p.namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		p.wrote(made.UID, made)
	}
	return made, err
}

// remove deletes a pod, and no later one of the same name.
func (p *pods) remove(ctx context.Context, pod *corev1.Pod, grace int64) error {
	err := p.client.CoreV1().Pods(p.namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	if err == nil || isGone(err) {
		p.wrote(pod.UID, nil)
		return nil
	}
	return err
}
