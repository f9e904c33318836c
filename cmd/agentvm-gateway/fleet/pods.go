package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// pods are those of the namespace.
type pods struct {
	*watched[*corev1.Pod]
	client    kubernetes.Interface
	namespace string

	mu      sync.Mutex
	missing map[string]time.Time // sandboxes that the cluster has not; none of these can come
}

const (
	indexSandbox = "sandbox"
	indexState   = "state"

	aheadTime    = 5 * time.Second // how long what only this gateway knows is believed in
	missingStays = time.Minute
	maxMissing   = 10000
)

func newPods(client kubernetes.Interface, namespace string) (*pods, error) {
	w, err := newWatched[*corev1.Pod](client, inPools(client.CoreV1().Pods(namespace)), &corev1.Pod{}, cache.Indexers{
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
	return &pods{watched: w, client: client, namespace: namespace, missing: map[string]time.Time{}}, err
}

func stateKey(state, pool string) string { return state + "/" + pool }

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

// with returns the pods that are known to have a record of a sandbox.
func (p *pods) with(id string) (list []*corev1.Pod) {
	has := func(pod *corev1.Pod) bool {
		_, has := pod.Labels[labelSandbox+id]
		return has
	}
	objects, _ := p.informer.GetIndexer().ByIndex(indexSandbox, id)
	for _, object := range objects {
		if pod := p.newest(object.(*corev1.Pod)); pod != nil && has(pod) {
			list = append(list, pod)
		}
	}
	for _, pod := range p.ahead(aheadTime) {
		if has(pod) && !slices.ContainsFunc(list, func(known *corev1.Pod) bool { return known.UID == pod.UID }) {
			list = append(list, pod)
		}
	}
	return list
}

// ask has the cluster say which pods have a record of a sandbox: another gateway may have made one just now.
func (p *pods) ask(ctx context.Context, id string) (list []*corev1.Pod, err error) {
	found, err := p.client.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelSandbox + id})
	if err != nil {
		return nil, fmt.Errorf("the pods of %s: %w", id, err)
	}
	for i := range found.Items {
		if pod := p.newest(&found.Items[i]); pod != nil {
			list = append(list, pod)
		}
	}
	return list, nil
}

// isMissing says whether the cluster did not have a sandbox when it was asked last, and miss notes that.
func (p *pods) isMissing(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.missing[id]) < missingStays
}

func (p *pods) miss(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.missing) >= maxMissing {
		clear(p.missing)
	}
	p.missing[id] = time.Now()
}

// read asks for a pod; nil: there is no such pod, and its containers have ended.
func (p *pods) read(ctx context.Context, name string, uid types.UID) (*corev1.Pod, error) {
	now, err := p.client.CoreV1().Pods(p.namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && now.UID == uid:
		p.wrote(uid, now)
		return now, nil
	case err == nil || apierrors.IsNotFound(err):
		p.wrote(uid, nil)
		return nil, nil
	}
	return nil, fmt.Errorf("pod %s: %w", name, err)
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
