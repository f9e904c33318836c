package fleet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// One gateway, the holder of a Lease, ends what is over. The others do not rely on it: a sandbox whose time has come is gone for them, too.
const (
	leaseName     = "agentvm-gateway"
	leaseTime     = 10 * time.Second
	renewTime     = 6 * time.Second
	retryTime     = 2 * time.Second
	lookEvery     = time.Second
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

// reap looks for what is over until ctx ends.
func (g *Gateway) reap(ctx context.Context) {
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
			if ctx.Err() != nil {
				return
			}
			g.look(ctx, p, time.Now())
		}
	}
}

// look ends the sandboxes of a pod whose time has come, and the pod with its last one.
func (g *Gateway) look(ctx context.Context, p *corev1.Pod, now time.Time) {
	list, err := recordsOf(p)
	if err != nil {
		g.config.Logger.Warn("a pod's records were changed by someone else: it is left alone", "pod", p.Name, "err", err)
		return
	}
	if len(list) == 0 || isOver(p, now) {
		g.discard(ctx, p)
		return
	}
	for id, r := range list {
		if r.Paused || now.Before(r.Ends) {
			continue
		}
		b := &sandbox{id, r, p}
		if r.Pauses {
			if err = g.pause(ctx, b, nil); err == nil {
				g.metrics.expired.Add(1)
				return // the pod's next version is looked at then
			}
			g.config.Logger.Warn("a sandbox was not paused at its end, and is removed", "sandbox", id, "err", err)
		}
		if err := g.kill(ctx, b); err != nil {
			g.config.Logger.Warn("a sandbox was not ended: it is at the next look", "sandbox", id, "err", err)
			continue
		}
		g.metrics.expired.Add(1)
		return
	}
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
