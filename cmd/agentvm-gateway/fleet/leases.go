package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// A sandbox that has been hibernated has a Lease of its name until it ends. While there is one, it alone says where the sandbox is:
//
//	running ──pause──► saving ──the pod has written it──► stored ──resume──► loading ──the pod has restored it──► running
//	   ▲                  │ the pod cannot                  ▲                    │ the pod cannot, and is gone
//	   └──────────────────┘                                 └────────────────────┘
//
// Its holder is the pod that has the sandbox, or the one pod that may restore it. Each arrow is a conditional update. A gateway renews the Lease of
// what it moves. The leader, or the next request for the sandbox, mends what one has left that was killed:
//
//	pause:  1 Lease saving, holder P    2 P pushes the state ID.N    3 Lease stored             4 P's record is dropped, the client learns it
//	resume: 1 warm pod Q is claimed     2 Lease loading, holder Q    3 Q restores the state     4 Lease running, the client learns it
//
//	killed after   left                               mended
//	pause 1, 2     saving; P may have written it      P is asked again, which changes nothing when it has. When P is gone: stored if ID.N is whole,
//	                                                  else the sandbox has ended with its pod, and no older state is brought back
//	pause 3        stored; P has it, paused           P's record is dropped: the Lease names another holder, or none
//	resume 1       Q, whose record has Resumed        it counts by its Lease only; Q is deleted
//	resume 2, 3    loading                            Q is deleted, and the Lease is stored when Q is gone
//	kill           no Lease, perhaps states           the sweep deletes states that no Lease names
//
// The last state stays while the sandbox runs: the next one names it as what it is written since.
const (
	phaseRunning = "running" // in its holder, whose record says the rest
	phaseSaving  = "saving"  // in its holder, which writes it to the object store
	phaseStored  = "stored"  // in the object store alone
	phaseLoading = "loading" // in the object store; its holder restores it

	phaseKeeping = "keeping" // of a snapshot: see snapshots.go
	phaseKept    = "kept"

	annotationRecord = prefix + "record" // of the sandbox, in JSON
	annotationState  = prefix + "state"  // the newest whole state in the object store

	moveTime = 30 * time.Second
)

// leases are those of sandboxes.
type leases struct {
	*watched[*coordinationv1.Lease]
	client    kubernetes.Interface
	namespace string
}

func newLeases(client kubernetes.Interface, namespace string) (*leases, error) {
	w, err := newWatched[*coordinationv1.Lease](client, inPools(client.CoordinationV1().Leases(namespace)), &coordinationv1.Lease{}, cache.Indexers{})
	return &leases{watched: w, client: client, namespace: namespace}, err
}

// get returns a sandbox's Lease, as far as it is known here; nil: none.
func (s *leases) get(id string) *coordinationv1.Lease {
	if object, found, _ := s.informer.GetStore().GetByKey(s.namespace + "/" + id); found {
		if l := s.newest(object.(*coordinationv1.Lease)); l != nil {
			return l
		}
	}
	for _, l := range s.ahead(aheadTime) {
		if l.Name == id {
			return l
		}
	}
	return nil
}

// list returns all that are known here.
func (s *leases) list() (list []*coordinationv1.Lease) {
	for _, object := range s.informer.GetStore().List() {
		if l := s.newest(object.(*coordinationv1.Lease)); l != nil {
			list = append(list, l)
		}
	}
	return list
}

// read asks the cluster for a sandbox's Lease; nil: none.
func (s *leases) read(ctx context.Context, id string) (*coordinationv1.Lease, error) {
	l, err := s.client.CoordinationV1().Leases(s.namespace).Get(ctx, id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if known := s.get(id); known != nil {
			s.wrote(known.UID, nil)
		}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the Lease of %s: %w", id, err)
	}
	s.wrote(l.UID, l)
	return l, nil
}

// ask asks the cluster for those with labels.
func (s *leases) ask(ctx context.Context, with labels.Set) ([]coordinationv1.Lease, error) {
	list, err := s.client.CoordinationV1().Leases(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: with.String()})
	if err != nil {
		return nil, fmt.Errorf("list Leases: %w", err)
	}
	return list.Items, nil
}

// newLease is one that make is to make.
func newLease(name, tenant, template string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{LabelPool: template, LabelTenant: tenant}, Annotations: map[string]string{},
	}}
}

// make makes a Lease.
func (s *leases) make(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	l.Namespace = s.namespace
	renew(l)
	made, err := s.client.CoordinationV1().Leases(s.namespace).Create(ctx, l, metav1.CreateOptions{})
	if err == nil {
		s.wrote(made.UID, made)
	}
	return made, err
}

// update changes a Lease if it is still the version that is given.
func (s *leases) update(ctx context.Context, l *coordinationv1.Lease, change func(*coordinationv1.Lease)) (*coordinationv1.Lease, error) {
	next := l.DeepCopy()
	change(next)
	renew(next)
	made, err := s.client.CoordinationV1().Leases(s.namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err == nil {
		s.wrote(made.UID, made)
	}
	return made, err
}

// remove deletes a Lease, whatever it says by now. same: only if it is still the version that is given; else the error is a conflict.
func (s *leases) remove(ctx context.Context, l *coordinationv1.Lease, same bool) error {
	only := metav1.NewUIDPreconditions(string(l.UID))
	if same {
		only.ResourceVersion = &l.ResourceVersion
	}
	err := s.client.CoordinationV1().Leases(s.namespace).Delete(ctx, l.Name, metav1.DeleteOptions{Preconditions: only})
	if err == nil || !same && isGone(err) || apierrors.IsNotFound(err) {
		s.wrote(l.UID, nil)
		return nil
	}
	return err
}

func renew(l *coordinationv1.Lease) {
	now := metav1.NowMicro()
	l.Spec.RenewTime = &now
}

// isLeft says whether no gateway works on a move any more.
func (g *Gateway) isLeft(l *coordinationv1.Lease) bool {
	return l.Spec.RenewTime == nil || time.Since(l.Spec.RenewTime.Time) > g.config.moveTime()
}

func phaseOf(l *coordinationv1.Lease) string { return l.Labels[LabelState] }

// beginSaving has a sandbox's pod write it to a state that no one has written before.
func beginSaving(l *coordinationv1.Lease, b *sandbox) {
	r := b.Record
	r.Paused = true
	begin(l, phaseSaving, r, b.pod)
}

// begin has a pod write a state that no one has written before. record is what the Lease says of it.
func begin(l *coordinationv1.Lease, phase string, record any, p *corev1.Pod) {
	number := int32(1)
	if l.Spec.LeaseTransitions != nil {
		number = *l.Spec.LeaseTransitions + 1
	}
	l.Spec.LeaseTransitions = &number
	text, err := json.Marshal(record)
	if err != nil {
		panic(err) // strings and times
	}
	l.Annotations[annotationRecord] = string(text)
	setPhase(l, phase, p)
}

// setPhase changes a Lease. holder is nil for a sandbox that is in no pod.
func setPhase(l *coordinationv1.Lease, phase string, holder *corev1.Pod) {
	l.Labels[LabelState] = phase
	l.Spec.HolderIdentity = nil
	if holder != nil {
		name := holder.Name + "/" + string(holder.UID)
		l.Spec.HolderIdentity = &name
	}
}

// holderOf is the pod that a Lease names.
func holderOf(l *coordinationv1.Lease) (name string, uid types.UID) {
	if l.Spec.HolderIdentity == nil {
		return "", ""
	}
	name, text, _ := strings.Cut(*l.Spec.HolderIdentity, "/")
	return name, types.UID(text)
}

// isHeld says whether a Lease's sandbox runs in a pod.
func isHeld(l *coordinationv1.Lease, p *corev1.Pod) bool {
	_, uid := holderOf(l)
	return uid == p.UID && phaseOf(l) == phaseRunning
}

// saved is the sandbox of a Lease, while it runs nowhere.
func saved(l *coordinationv1.Lease) (*sandbox, error) {
	b := &sandbox{id: l.Name, lease: l}
	if err := json.Unmarshal([]byte(l.Annotations[annotationRecord]), &b.Record); err != nil {
		return nil, fmt.Errorf("lease %s: %s: %w", l.Name, annotationRecord, err)
	}
	b.Paused = true
	return b, nil
}

// target is the name of the state that a sandbox, or a snapshot, is being written to.
func target(l *coordinationv1.Lease) string {
	number := int32(0)
	if l.Spec.LeaseTransitions != nil {
		number = *l.Spec.LeaseTransitions
	}
	return fmt.Sprintf("%s.%d", l.Name, number)
}

// uses says whether a sandbox, or a snapshot, needs a state of the object store.
func uses(l *coordinationv1.Lease, state string) bool {
	phase := phaseOf(l)
	return state == l.Annotations[annotationState] || state == target(l) && (phase == phaseSaving || phase == phaseKeeping)
}
