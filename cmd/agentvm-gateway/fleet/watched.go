package fleet

import (
	"context"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watched are objects of the namespace as a watch knows them, and as this gateway has changed them since: what it has written is seen by its
// own next request, although the watch may be behind.
type watched[T interface {
	comparable
	metav1.Object
}] struct {
	informer cache.SharedIndexInformer

	mu      sync.Mutex
	written map[types.UID]writing[T] // newer than the watch, perhaps
	changed chan struct{}            // closed at the next event of the watch
}

// writing is an object as this gateway has written it; the zero value: it is deleted.
type writing[T any] struct {
	object T
	at     time.Time
}

const (
	resync       = 10 * time.Minute
	writtenStays = time.Minute // longer than a watch is behind
)

func newWatched[T interface {
	comparable
	metav1.Object
}](client kubernetes.Interface, access *cache.ListWatch, like runtime.Object, indexers cache.Indexers) (*watched[T], error) {
	w := &watched[T]{
		informer: cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(access, client), like, resync, indexers),
		written:  map[types.UID]writing[T]{}, changed: make(chan struct{}),
	}
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.wake() }, UpdateFunc: func(any, any) { w.wake() },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if gone, ok := object.(T); ok {
				var none T
				w.wrote(gone.GetUID(), none)
			}
			w.wake()
		},
	})
	return w, err
}

// inPools lists and watches the objects that carry the label of a pool.
func inPools[L runtime.Object](access interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = LabelPool
			return access.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = LabelPool
			return access.Watch(ctx, o)
		},
	}
}

// run watches until ctx ends.
func (w *watched[T]) run(ctx context.Context) { w.informer.RunWithContext(ctx) }

func (w *watched[T]) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// next is closed at the watch's next event.
func (w *watched[T]) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// wrote notes what this gateway has written, or read and knows to be the newest.
func (w *watched[T]) wrote(uid types.UID, object T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for old, was := range w.written {
		if now.Sub(was.at) > writtenStays {
			delete(w.written, old)
		}
	}
	w.written[uid] = writing[T]{object, now}
}

// newest is the newest version of an object that is known here; nil: it is deleted or is being deleted.
func (w *watched[T]) newest(object T) T {
	var none T
	w.mu.Lock()
	was, found := w.written[object.GetUID()]
	w.mu.Unlock()
	if found && (was.object == none || newer(was.object, object)) {
		object = was.object
	}
	if object == none || object.GetDeletionTimestamp() != nil {
		return none
	}
	return object
}

// ahead yields what this gateway has written at most a time ago.
func (w *watched[T]) ahead(within time.Duration) (list []T) {
	var none T
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, was := range w.written {
		if was.object != none && time.Since(was.at) <= within && was.object.GetDeletionTimestamp() == nil {
			list = append(list, was.object)
		}
	}
	return list
}

func newer(a, b metav1.Object) bool {
	x, xErr := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, yErr := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return xErr == nil && yErr == nil && x > y
}
