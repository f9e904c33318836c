package nat

import "sync"

// outcome is why a flow has ended: the first of what both its directions, its timers and its owner say. It is safe for
// concurrent use.
type outcome struct {
	mu      sync.Mutex
	settled bool
	reason  Reason
	err     error
}

// settle says why, and returns whether that was the first word: then it is the caller's to end the flow.
func (o *outcome) settle(reason Reason, err error) (first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.settled {
		return false
	}
	o.settled, o.reason, o.err = true, reason, err
	return true
}

// get is what was settled, if anything was.
func (o *outcome) get() (reason Reason, settled bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reason, o.settled, o.err
}

// closeAs closes the flow for that reason.
func (o *outcome) closeAs(f *flow) {
	reason, _, err := o.get()
	f.close(reason, err)
}
