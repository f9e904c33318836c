package e2b

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"agentvm/internal/api/rpc"
	"agentvm/vm"
)

// Directories are watched by looking at them again and again: the guest reports no changes of files. So what was there between two looks only
// is not seen, and a file that was renamed is one that was removed and one that was created.
const (
	maxWatches = 16 // of a sandbox
	lookPause  = 500 * time.Millisecond
	lookShare  = 10 // looking may take one part of so many of the time
)

type watchRequest struct {
	Path         string `json:"path"`
	Recursive    bool   `json:"recursive"`
	IncludeEntry bool   `json:"includeEntry"`
	WatcherID    string `json:"watcherId"`
}

// fileEvent is a change of a file.
type fileEvent struct {
	Name  string     `json:"name"` // below the directory
	Type  string     `json:"type"`
	Entry *entryInfo `json:"entry,omitempty"`
}

// watches are the watched directories of a sandbox: those that a client asks about have an id, the others a stream.
type watches struct {
	mu    sync.Mutex
	count int
	asked map[string]*watcher
}

// add counts one more, which the caller removes.
func (w *watches) add() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == maxWatches {
		return rpc.Errorf(connect.CodeResourceExhausted, "the sandbox has %d watched directories already", maxWatches)
	}
	w.count++
	return nil
}

func (w *watches) remove() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
}

// watcher has what was there at the last look.
type watcher struct {
	dir                string
	recursive, entries bool

	mu   sync.Mutex
	seen map[string]vm.FileInfo // by name below dir
}

// watch looks at a directory for the first time.
func (c *call) watch(q *watchRequest) (*watcher, error) {
	dir, err := c.user.path(q.Path)
	if err != nil {
		return nil, err
	}
	info, err := c.sandbox.vm.Files().Stat(c.live, dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "path is not a directory: %s", dir)
	}
	w := &watcher{dir: dir, recursive: q.Recursive, entries: q.IncludeEntry}
	w.seen, err = w.look(c)
	return w, err
}

// look lists the directory.
func (w *watcher) look(c *call) (map[string]vm.FileInfo, error) {
	seen := map[string]vm.FileInfo{}
	err := c.sandbox.vm.Files().Walk(c.live, w.dir, func(at string, info vm.FileInfo, err error) error {
		below := strings.Trim(strings.TrimPrefix(at, w.dir), "/")
		switch {
		case below == "":
			return err
		case err != nil:
			return nil // a directory that went away, or cannot be read
		case len(seen) == maxEntries:
			return errEnough
		}
		seen[below] = info
		if info.IsDir() && (!w.recursive || strings.Count(below, "/")+1 >= maxDepth) {
			return fs.SkipDir
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil, rpc.Errorf(connect.CodeResourceExhausted, "there are more than %d entries: watch a smaller directory", maxEntries)
	}
	return seen, err
}

// changes looks again and returns what is different.
func (w *watcher) changes(c *call) ([]fileEvent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, err := w.look(c)
	if err != nil {
		return nil, err
	}
	list := differences(w.seen, now)
	w.seen = now
	if w.entries && len(list) > 0 {
		d := c.describer()
		for i := range list {
			if info, there := now[list[i].Name]; there {
				e := d.entry(path.Join(w.dir, list[i].Name), info)
				list[i].Entry = &e
			}
		}
	}
	return list, nil
}

// differences are the events between two looks, by name.
func differences(before, now map[string]vm.FileInfo) []fileEvent {
	list := []fileEvent{}
	for name := range before {
		if _, there := now[name]; !there {
			list = append(list, fileEvent{Name: name, Type: "EVENT_TYPE_REMOVE"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		info := now[name]
		old, there := before[name]
		if there && old.Mode.Type() != info.Mode.Type() {
			list = append(list, fileEvent{Name: name, Type: "EVENT_TYPE_REMOVE"})
			there = false
		}
		if !there {
			list = append(list, fileEvent{Name: name, Type: "EVENT_TYPE_CREATE"})
			old = vm.FileInfo{Mode: info.Mode, UID: info.UID, GID: info.GID, Modified: info.Modified, Target: info.Target}
		}
		if !info.IsDir() && (old.Size != info.Size || !old.Modified.Equal(info.Modified) || old.Target != info.Target) {
			list = append(list, fileEvent{Name: name, Type: "EVENT_TYPE_WRITE"})
		}
		if old.Mode != info.Mode || old.UID != info.UID || old.GID != info.GID {
			list = append(list, fileEvent{Name: name, Type: "EVENT_TYPE_CHMOD"})
		}
	}
	slices.SortStableFunc(list, func(a, b fileEvent) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// watchDir streams the changes of a directory.
func watchDir(c *call, q *watchRequest, send sender) error {
	if err := c.sandbox.watches.add(); err != nil {
		return err
	}
	defer c.sandbox.watches.remove()
	w, err := c.watch(q)
	if err != nil {
		return err
	}
	quiet := keepalive(c.Header)
	if err := send(map[string]any{"start": struct{}{}}); err != nil {
		return err
	}
	for sent, pause := time.Now(), lookPause; ; {
		select {
		case <-c.live.Done():
			return c.live.Err()
		case <-time.After(pause):
		}
		began := time.Now()
		list, err := w.changes(c)
		if err != nil {
			return err
		}
		pause = max(lookPause, lookShare*time.Since(began))
		for _, e := range list {
			if err := send(map[string]any{"filesystem": e}); err != nil {
				return err
			}
			sent = time.Now()
		}
		if quiet > 0 && time.Since(sent) >= quiet {
			if err := send(map[string]any{"keepalive": struct{}{}}); err != nil {
				return err
			}
			sent = time.Now()
		}
	}
}

// createWatcher watches a directory for a client that asks for the changes.
func createWatcher(c *call, q *watchRequest) (any, error) {
	all := &c.sandbox.watches
	if err := all.add(); err != nil {
		return nil, err
	}
	w, err := c.watch(q)
	if err != nil {
		all.remove()
		return nil, err
	}
	id := rand.Text()
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.asked == nil {
		all.asked = map[string]*watcher{}
	}
	all.asked[id] = w
	return map[string]string{"watcherId": id}, nil
}

func (w *watches) find(id string) (*watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found := w.asked[id]; found != nil {
		return found, nil
	}
	return nil, rpc.Errorf(connect.CodeNotFound, "there is no watcher %.100q", id)
}

func watcherEvents(c *call, q *watchRequest) (any, error) {
	w, err := c.sandbox.watches.find(q.WatcherID)
	if err != nil {
		return nil, err
	}
	list, err := w.changes(c)
	return map[string]any{"events": list}, err
}

func removeWatcher(c *call, q *watchRequest) (any, error) {
	all := &c.sandbox.watches
	if _, err := all.find(q.WatcherID); err != nil {
		return nil, err
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.asked[q.WatcherID] != nil {
		delete(all.asked, q.WatcherID)
		all.count--
	}
	return struct{}{}, nil
}
