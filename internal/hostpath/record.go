package hostpath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/atomicfile"
	"agentvm/internal/lockfile"
	"agentvm/internal/private"
)

// recordName is the file in a store with the directories that were writable mounts. It is in a folder of its own, which a
// confined process may read without the rest of the store: the file is replaced when it changes.
const recordName = "mounts/mounted.json"

const (
	maxRecord    = 16 << 20         // bytes
	maxRecorded  = 2000             // directories, the newest
	recordedTime = 24 * time.Hour   // precision of their times
	recordWait   = 10 * time.Second // bounds the wait for other writers
)

// recorded is a directory that was mounted writable.
type recorded struct {
	Identity
	Where string    `json:"where,omitempty"` // root.where
	Last  time.Time `json:"last"`
}

// Known returns a guard with every directory that machines of a store could change. The store need not exist.
func Known(store string) (*Guard, error) {
	g := &Guard{}
	list, err := readRecord(filepath.Join(store, recordName))
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		g.roots = append(g.roots, root{fileID{r.Device, r.File}, r.Real, r.Where, r.Boot})
	}
	return g, nil
}

func readRecord(path string) (list []recorded, err error) {
	b, err := private.ReadFile(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read which directories machines could change: %s: %w (without it no path can be trusted: repair it, or remove it if no machine has had a writable mount)", path, err)
	}
	return list, nil
}

// Remember records in the store that guests may change directories. The caller does it before they can.
func (g *Guard) Remember(ctx context.Context, store string, places []*Place) error {
	if len(places) == 0 {
		return nil
	}
	path := filepath.Join(store, recordName)
	now := time.Now().UTC()
	list, err := readRecord(path)
	if err != nil || !slices.ContainsFunc(places, func(p *Place) bool { return !known(list, p, now.Add(-recordedTime)) }) {
		return err
	}
	old := !slices.ContainsFunc(places, func(p *Place) bool { return !known(list, p, time.Time{}) })
	if err := g.note(ctx, path, places, now); err != nil && !(old && errors.Is(err, fs.ErrPermission)) {
		return err
	}
	return nil // a confined process cannot write it, and need not, because only the time is old
}

func (g *Guard) note(ctx context.Context, path string, places []*Place, now time.Time) error {
	if err := private.MakeFolder(filepath.Dir(path)); err != nil {
		return fmt.Errorf("note which directories machines can change: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, recordWait)
	defer cancel()
	lock, err := lockfile.Wait(ctx, path+".lock")
	if err != nil {
		return fmt.Errorf("note which directories machines can change: %s: %w", path, err)
	}
	defer lock.Close()
	list, err := readRecord(path)
	if err != nil {
		return err
	}
	for _, p := range places {
		list = slices.DeleteFunc(list, func(r recorded) bool { return r.same(p.Identity) && r.Boot == p.Boot })
		list = append(list, recorded{p.Identity, p.where().canonical(g.table()), now})
	}
	if n := len(list) - maxRecorded; n > 0 {
		list = list[n:]
	}
	return writeRecord(path, list)
}

// known reports whether the list has a place that was mounted after a time.
func known(list []recorded, p *Place, after time.Time) bool {
	return slices.ContainsFunc(list, func(r recorded) bool {
		return r.same(p.Identity) && r.Boot == p.Boot && r.Last.After(after)
	})
}

func writeRecord(path string, list []recorded) error {
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, b); err != nil {
		return fmt.Errorf("note which directories machines can change: %w", err)
	}
	return nil
}
