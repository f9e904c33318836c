package wire

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"agentvm/internal/host/naming"
)

// MaxSnapshots is how many snapshots a server, or a tenant of a cluster, keeps.
const MaxSnapshots = 64

const maxSnapshotName = 40 // bytes

// Snapshot is a sandbox that was kept, of which others are made.
type Snapshot struct {
	Name, Sandbox string
	Created       time.Time
}

// Described is E2B's SnapshotInfo: a name serves as both.
func (s Snapshot) Described() map[string]any {
	return map[string]any{"snapshotID": s.Name, "names": []string{s.Name}}
}

// ReadSnapshotName reads the request that makes a snapshot. One that names none gets a name by chance.
func ReadSnapshotName(r *http.Request) (string, error) {
	var q struct {
		Name string `json:"name"`
	}
	if err := ReadJSON(r, &q); err != nil {
		return "", err
	}
	name := cmp.Or(q.Name, strings.ToLower(rand.Text()))
	if err := naming.Check("snapshot name", name); err != nil || len(name) > maxSnapshotName {
		return "", Fail(http.StatusBadRequest, "name: want at most %d letters, digits, dots, underscores and dashes (%v)", maxSnapshotName, err)
	}
	return name, nil
}

// TooManySnapshots is the error of who has as many as there may be.
func TooManySnapshots(n int) error {
	return Fail(http.StatusTooManyRequests, "there are %d snapshots: delete some", n)
}

// SnapshotExists is the error of a name that is taken.
func SnapshotExists(name string) error {
	return Fail(http.StatusConflict, "there is a snapshot %s already", name)
}

// NoSnapshot is the error of a name that is not there.
func NoSnapshot(name string) error {
	return Fail(http.StatusNotFound, "snapshot %.100q was not found", name)
}

// ListSnapshots answers a request with those of all that it wants, in pages, the newest first.
func ListSnapshots(w http.ResponseWriter, q url.Values, all []Snapshot) error {
	if err := CheckQuery(q, "sandboxID", "name", "limit", "nextToken"); err != nil {
		return err
	}
	limit, err := limitOf(q, maxList)
	if err != nil {
		return err
	}
	id, name := q.Get("sandboxID"), q.Get("name")
	list := slices.DeleteFunc(slices.Clone(all), func(one Snapshot) bool {
		return id != "" && one.Sandbox != id || name != "" && one.Name != name
	})
	of := func(one Snapshot) position { return position{one.Created.Round(0), one.Name} }
	slices.SortFunc(list, func(a, b Snapshot) int { return of(a).compare(of(b)) })
	list, next, err := page(q, list, limit, of, position.compare)
	if err != nil {
		return err
	}
	if next != "" {
		w.Header().Set("X-Next-Token", next)
	}
	described := make([]map[string]any, len(list))
	for i, one := range list {
		described[i] = one.Described()
	}
	WriteJSON(w, http.StatusOK, described)
	return nil
}
