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

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/lockfile"
	"agentvm/internal/host/private"
)

// The record has the directories that were writable mounts. There is one for all stores of a user, beside the user's keys, because a
// link that a guest of one store has made is as bad for the commands of another. It is in a folder of its own, which a confined process
// may read without the keys: the file is replaced when it changes.
const (
	recordFolder = "mounts"
	recordName   = "mounted.json"
)

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
	Born  int64     `json:"born,omitempty"`  // root.born
	Last  time.Time `json:"last"`
}

// Known returns a guard with every directory that machines of this user could change. The store, which need not exist, may have a record of
// an earlier version, which kept one in each store.
func Known(store string) (*Guard, error) {
	folder, err := userRecord()
	if err != nil { // without a home nothing was ever noted (Remember)
		folder = ""
	}
	list, err := readRecords(folder, store)
	if err != nil {
		return nil, err
	}
	g := &Guard{}
	for _, r := range list {
		g.roots = append(g.roots, root{fileID{r.Device, r.File}, r.Born, r.Real, r.Where, r.Boot})
	}
	return g, nil
}

func userRecord() (folder string, err error) {
	if folder, err = private.UserFolder(); err != nil {
		return "", err
	}
	return filepath.Join(folder, recordFolder), nil
}

// MakeRecord makes the folder of the record, so that a confined process can be allowed to read it, and returns it.
func MakeRecord() (folder string, err error) {
	if folder, err = userRecord(); err == nil {
		err = private.MakeFolder(folder)
	}
	return folder, err
}

// readRecords reads the user's record, in a folder, and the store's of an earlier version.
func readRecords(folder, store string) ([]recorded, error) {
	list, err := readRecord(filepath.Join(store, recordFolder, recordName))
	if err != nil || folder == "" {
		return list, err
	}
	if err := private.CheckFolder(folder); errors.Is(err, fs.ErrNotExist) {
		return list, nil
	} else if err != nil {
		return nil, fmt.Errorf("read which directories machines could change: %w", err)
	}
	users, err := readRecord(filepath.Join(folder, recordName))
	for _, r := range users { // the newest last
		list = append(slices.DeleteFunc(list, func(old recorded) bool { return old.same(r.Identity) && old.Boot == r.Boot }), r)
	}
	return list, err
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

// Remember records for all stores of the user that guests may change directories. The caller does it before they can. The store is that of Known.
func (g *Guard) Remember(ctx context.Context, store string, places []*Place) error {
	if len(places) == 0 {
		return nil
	}
	now := time.Now().UTC()
	folder, err := userRecord()
	if err == nil {
		var list []recorded
		if list, err = readRecords(folder, store); err != nil {
			return err
		}
		if !slices.ContainsFunc(places, func(p *Place) bool { return !known(list, p, now.Add(-recordedTime)) }) {
			return nil
		}
		if err = g.note(ctx, store, places, now); err != nil && !slices.ContainsFunc(places, func(p *Place) bool { return !known(list, p, time.Time{}) }) {
			return nil // only the time is old; a confined process, for one, cannot write it
		}
	}
	if err != nil {
		return fmt.Errorf("note which directories machines can change, without which a link that one makes there could be followed later: %w "+
			"(the folder agentvm in the user's configuration must be one that you can write; on Linux XDG_CONFIG_HOME names another place for it)", err)
	}
	return nil
}

func (g *Guard) note(ctx context.Context, store string, places []*Place, now time.Time) error {
	folder, err := MakeRecord()
	if err != nil {
		return err
	}
	path := filepath.Join(folder, recordName)
	ctx, cancel := context.WithTimeout(ctx, recordWait)
	defer cancel()
	lock, err := lockfile.Wait(ctx, path+".lock")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer lock.Close()
	list, err := readRecords(folder, store) // what an earlier version has noted in the store is known to other stores from now on
	if err != nil {
		return err
	}
	for _, p := range places {
		list = slices.DeleteFunc(list, func(r recorded) bool { return r.same(p.Identity) && r.Boot == p.Boot })
		list = append(list, recorded{p.Identity, p.where().canonical(g.table()), p.born, now})
	}
	if n := len(list) - maxRecorded; n > 0 {
		list = list[n:]
	}
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, b)
}

// known reports whether the list has a place that was mounted after a time.
func known(list []recorded, p *Place, after time.Time) bool {
	return slices.ContainsFunc(list, func(r recorded) bool {
		return r.same(p.Identity) && r.Boot == p.Boot && (r.Born == 0 || r.Born == p.born) && r.Last.After(after)
	})
}
