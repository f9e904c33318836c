package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)

// sandboxes have names s0, s1 and so on, the last the newest; each third began at the same time as the one before.
func sandboxes(n int) (list []Detail) {
	for i := range n {
		list = append(list, Detail{
			ID: fmt.Sprintf("s%d", i), Started: began.Add(time.Duration(i-i%3/2) * time.Second), Template: []string{"base", "kept"}[i%2],
			State: []string{Running, Paused}[i%2], Metadata: map[string]string{"a b": fmt.Sprint(i % 2)},
		})
	}
	return list
}

// TestPagesLoseNothing: sandboxes that end between two pages, those at the cut among them, hide no others, and none comes twice.
func TestPagesLoseNothing(t *testing.T) {
	for _, order := range []string{"", "asc", "desc"} {
		for _, ended := range []string{"", "all that was listed", "the next", "all but the last"} {
			all, q := sandboxes(20), url.Values{"limit": {"3"}}
			if order != "" {
				q.Set("order", order)
			}
			want, _, err := List(url.Values{"order": {order}}, all)
			if order == "" {
				want, _, err = List(nil, all)
			}
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for round := 0; ; round++ {
				page, next, err := List(q, all)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range page {
					if seen[d.ID] {
						t.Errorf("order %q, ended %q: %s comes twice", order, ended, d.ID)
					}
					seen[d.ID] = true
				}
				if next == "" {
					break
				}
				q.Set("nextToken", next)
				all = slices.DeleteFunc(all, func(d Detail) bool {
					return ended == "all that was listed" && seen[d.ID] || ended == "the next" && round == 0 && d.ID == want[3].ID ||
						ended == "all but the last" && d.ID != want[len(want)-1].ID
				})
			}
			for _, d := range want {
				if !seen[d.ID] && slices.ContainsFunc(all, func(left Detail) bool { return left.ID == d.ID }) {
					t.Errorf("order %q, ended %q: %s is not listed", order, ended, d.ID)
				}
			}
		}
	}
}

func TestFilters(t *testing.T) {
	all := sandboxes(4)
	for query, want := range map[string]string{
		"": "s3 s1 s2 s0", "template=base": "s2 s0", "template=kept&state=paused": "s3 s1", "template=none": "", "state=running&state=paused": "s3 s1 s2 s0",
		"startedAfter=2026-01-02T03:04:06Z": "s3 s1 s2", "startedAfter=2026-01-02T03:04:06.000000678Z": "s3", "metadata=a%252520b%253D1": "", "metadata=a%252520b%3D1": "s3 s1",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		page, _, err := List(q, all)
		var names []string
		for _, d := range page {
			names = append(names, d.ID)
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", query, got, err, want)
		}
	}
	for _, query := range []string{"templateID=base", "started_after=x", "startedAfter=yesterday", "order=up", "state=ended", "state=running,", "limit=0", "limit=101", "limit=x", "nextToken=s1", "nextToken=%21", "template=a&template=b", "metadata=%25zz"} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var f *Failure
		if page, _, err := List(q, all); !errors.As(err, &f) || f.Status != http.StatusBadRequest || page != nil {
			t.Errorf("%s: %v, %v", query, page, err)
		}
	}
}

func TestSnapshotPages(t *testing.T) {
	var all []Snapshot
	for i := range 5 {
		all = append(all, Snapshot{fmt.Sprintf("n%d", i), []string{"a", "b"}[i%2], began.Add(time.Duration(i) * time.Second)})
	}
	list := func(query string, from []Snapshot) (names string, next string, err error) {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		if err = ListSnapshots(w, q, from); err != nil {
			return "", "", err
		}
		var page []struct{ SnapshotID string }
		if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		for _, one := range page {
			names += one.SnapshotID
		}
		return names, w.Header().Get("X-Next-Token"), nil
	}
	for query, want := range map[string]string{"": "n4n3n2n1n0", "sandboxID=b": "n3n1", "name=n2": "n2", "name=n2&sandboxID=b": "", "name=n": ""} {
		if got, _, err := list(query, all); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", query, got, err, want)
		}
	}
	first, next, err := list("limit=2", all)
	rest, last, restErr := list("limit=9&nextToken="+next, all[:2]) // what comes next was deleted
	if first != "n4n3" || rest != "n1n0" || last != "" || errors.Join(err, restErr) != nil {
		t.Errorf("%q, then %q and %q, %v", first, rest, last, errors.Join(err, restErr))
	}
	for _, query := range []string{"limit=0", "template=x", "nextToken=n2"} {
		if _, _, err := list(query, all); err == nil {
			t.Errorf("%s is not refused", query)
		}
	}
}

func TestUnknownFields(t *testing.T) {
	for body, want := range map[string]bool{``: true, `{"name":"x"}`: true, `{"name":"x","nmae":"y"}`: false, `{"name":"x"}{}`: false, `{"name":`: false, ` `: false} {
		var v struct {
			Name string `json:"name"`
		}
		err := ReadJSON(httptest.NewRequest("POST", "/", strings.NewReader(body)), &v)
		if (err == nil) != want {
			t.Errorf("%q: %v", body, err)
		}
	}
}
