package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"agentvm/internal/api/e2b/wire"
)

// One gateway, the holder of a Lease, ends what is over. The others do not rely on it: a sandbox whose time has come is gone for them, too.
const (
	leaseName     = "agentvm-gateway"
	leaseTime     = 10 * time.Second
	renewTime     = 6 * time.Second
	retryTime     = 2 * time.Second
	lookEvery     = time.Second
	sweepEvery    = time.Hour
	abandonedTime = 2 * time.Minute // after which a claimed pod that is not ready any more is deleted
)

// lead leads now and again until ctx ends.
func (g *Gateway) lead(ctx context.Context) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Name: leaseName, Namespace: g.config.Namespace}, Client: g.config.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: g.config.Identity},
	}
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{ // it dies of a wrong configuration only, and this one is right
			Lock: lock, LeaseDuration: leaseTime, RenewDeadline: renewTime, RetryPeriod: retryTime, ReleaseOnCancel: true, Name: leaseName,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					g.leads.Store(true)
					defer g.leads.Store(false)
					g.reap(ctx)
				},
				OnStoppedLeading: func() { g.leads.Store(false) },
			},
		})
	}
}

// maxLooks is how many pods and Leases are looked at, at once: writing a sandbox to an object store takes its time.
const maxLooks = 32

// reap looks for what is over until ctx ends.
func (g *Gateway) reap(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	var mu sync.Mutex
	busy := map[types.UID]bool{}
	do := func(uid types.UID, look func()) { // unless an earlier look at the same is under way
		mu.Lock()
		defer mu.Unlock()
		if busy[uid] || len(busy) >= maxLooks || ctx.Err() != nil {
			return
		}
		busy[uid] = true
		work.Go(func() {
			look()
			mu.Lock()
			defer mu.Unlock()
			delete(busy, uid)
		})
	}
	swept := time.Now()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !g.ready.Load() {
			continue
		}
		for _, p := range g.pods.list(StateClaimed, "") {
			if chore := g.chore(p, time.Now()); chore != nil {
				do(p.UID, func() {
					if err := chore(ctx); err != nil {
						g.config.Logger.Warn("something is left to be done about a pod: it is at the next look", "pod", p.Name, "err", err)
					}
				})
			}
		}
		if g.states == nil {
			continue
		}
		for _, l := range g.leases.list() {
			if g.isDue(l) {
				do(l.UID, func() {
					if err := g.mend(ctx, l); err != nil {
						g.config.Logger.Warn("a sandbox was not mended, or not ended: it is at the next look", "sandbox", l.Name, "err", err)
					}
				})
			}
		}
		if time.Since(swept) > cmp.Or(g.config.Sweep, sweepEvery) {
			swept = time.Now()
			do("sweep", func() {
				if err := g.sweep(ctx); err != nil {
					g.config.Logger.Warn("the object store was not swept", "err", err)
				}
			})
		}
	}
}

// chore is what is to be done about a pod; nil: nothing.
func (g *Gateway) chore(p *corev1.Pod, now time.Time) func(context.Context) error {
	list, err := recordsOf(p)
	if err != nil {
		return func(context.Context) error {
			return fmt.Errorf("it is left alone: someone else has changed it: %w", err)
		}
	}
	if len(list) == 0 || isOver(p, now) {
		return func(ctx context.Context) error { return g.pods.remove(ctx, p, killGrace) }
	}
	for id, r := range list {
		b := &sandbox{id: id, Record: r, pod: p, lease: g.leases.get(id)}
		switch {
		case g.isElsewhere(b, now):
			return func(ctx context.Context) (err error) {
				if b.lease, err = g.leases.read(ctx, id); err == nil && g.isElsewhere(b, now) {
					err = g.drop(ctx, id, p)
				}
				return err
			}
		case b.lease == nil && !r.Resumed.IsZero() || b.lease != nil && !isHeld(b.lease, p): // it is being moved
		case r.Paused || now.Before(r.Ends):
		default:
			return func(ctx context.Context) error { return g.expire(ctx, b) }
		}
	}
	return nil
}

// isElsewhere says whether a pod has no sandbox any more of which it has a record: it was moved, or its move into the pod was given up.
func (g *Gateway) isElsewhere(b *sandbox, now time.Time) bool {
	if !b.Resumed.IsZero() && now.Sub(b.Resumed) < g.config.moveTime() {
		return false // its Lease may be about to say so
	}
	if b.lease == nil {
		return !b.Resumed.IsZero()
	}
	_, uid := holderOf(b.lease)
	return uid != b.pod.UID
}

// expire ends a sandbox whose time has come.
func (g *Gateway) expire(ctx context.Context, b *sandbox) error {
	err := error(nil)
	if b.Pauses {
		err = g.pause(ctx, b, nil)
		if f := (*wire.Failure)(nil); errors.As(err, &f) && f.Status == http.StatusNotFound { // the pod has lost it
			err = g.kill(ctx, b)
		}
	} else {
		err = g.kill(ctx, b)
	}
	if err == nil {
		g.metrics.expired.Add(1)
	}
	return err
}

// isOver says whether a pod will serve no more.
func isOver(p *corev1.Pod, now time.Time) bool {
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return true
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
			return now.Sub(c.LastTransitionTime.Time) > abandonedTime
		}
	}
	return false
}
