package wire

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const maxList = 100

// CheckQuery refuses names that are not known, and those that are there twice: a filter that is passed over would list, or end, what was not
// meant.
func CheckQuery(q url.Values, known ...string) error {
	for name, values := range q {
		if !slices.Contains(known, name) {
			return Fail(http.StatusBadRequest, "%.100q in the query is not supported", name)
		}
		if len(values) > 1 && name != "state" {
			return Fail(http.StatusBadRequest, "%s is in the query more than once", name)
		}
	}
	return nil
}

// position is where a list was cut: behind what has this time and name, whether that is still there or not.
type position struct {
	time time.Time
	name string
}

func (p position) compare(other position) int {
	return cmp.Or(other.time.Compare(p.time), cmp.Compare(p.name, other.name)) // the newest first
}

func (p position) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", p.time.UnixNano(), p.name))
}

func parsePosition(token string) (p position, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	nanoseconds, name, found := strings.Cut(string(text), " ")
	n, parseErr := strconv.ParseInt(nanoseconds, 10, 64)
	if err = errors.Join(err, parseErr); err != nil || !found {
		return p, Fail(http.StatusBadRequest, "nextToken: %.100q is none that this server gives", token)
	}
	return position{time.Unix(0, n), name}, nil
}

// page returns up to limit of what follows the position of the query's nextToken in a list, which is sorted by compare, and the token of the
// next page, "" when there is none.
func page[T any](q url.Values, list []T, limit int, of func(T) position, compare func(a, b position) int) ([]T, string, error) {
	if token := q.Get("nextToken"); token != "" {
		last, err := parsePosition(token)
		if err != nil {
			return nil, "", err
		}
		list = slices.DeleteFunc(list, func(one T) bool { return compare(of(one), last) <= 0 })
	}
	if len(list) <= limit {
		return list, "", nil
	}
	return list[:limit], of(list[limit-1]).token(), nil
}

// limitOf reads the query's limit, which is at most the given one.
func limitOf(q url.Values, most int) (int, error) {
	text := q.Get("limit")
	if text == "" {
		return most, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, Fail(http.StatusBadRequest, "limit: want 1 to %d", most)
	}
	return n, nil
}

// List chooses from all sandboxes what a query wants, the newest first, in pages. next is the token of the page after this one, "" when there
// is none.
func List(q url.Values, all []Detail) (list []Detail, next string, err error) {
	if err := CheckQuery(q, "metadata", "state", "template", "startedAfter", "order", "limit", "nextToken"); err != nil {
		return nil, "", err
	}
	limit, err := limitOf(q, maxList)
	if err != nil {
		return nil, "", err
	}
	wanted, err := filter(q)
	if err != nil {
		return nil, "", err
	}
	compare := position.compare
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		compare = func(a, b position) int { return b.compare(a) }
	default:
		return nil, "", Fail(http.StatusBadRequest, "order: want asc or desc")
	}
	// Without the monotonic clock, which no token has.
	of := func(d Detail) position { return position{d.Started.Round(0), d.ID} }
	list = []Detail{}
	for _, d := range all {
		if wanted(d) {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b Detail) int { return compare(of(a), of(b)) })
	return page(q, list, limit, of, compare)
}

// filter returns what a query wants of a sandbox.
func filter(q url.Values) (func(Detail) bool, error) {
	metadata, err := metadataOf(q.Get("metadata"))
	if err != nil {
		return nil, err
	}
	states := strings.Split(cmp.Or(strings.Join(q["state"], ","), Running+","+Paused), ",")
	for _, state := range states {
		if state != Running && state != Paused {
			return nil, Fail(http.StatusBadRequest, "state: %.100q is neither %s nor %s", state, Running, Paused)
		}
	}
	var after time.Time
	if text := q.Get("startedAfter"); text != "" {
		if after, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, Fail(http.StatusBadRequest, "startedAfter: want a time as 2026-01-02T15:04:05Z")
		}
	}
	template := q.Get("template")
	return func(d Detail) bool {
		for key, value := range metadata {
			if has, found := d.Metadata[key]; !found || has != value {
				return false
			}
		}
		return slices.Contains(states, d.State) && (after.IsZero() || d.Started.After(after)) && (template == "" || template == d.Template || template == d.Alias)
	}, nil
}

// metadataOf reads KEY=VALUE&KEY=VALUE, of which the SDK escapes each part and then makes a query.
func metadataOf(text string) (map[string]string, error) {
	want := map[string]string{}
	for _, pair := range strings.Split(text, "&") {
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		for range 2 {
			var keyErr, valueErr error
			key, keyErr = url.QueryUnescape(key)
			value, valueErr = url.QueryUnescape(value)
			if err := errors.Join(keyErr, valueErr); err != nil {
				return nil, Fail(http.StatusBadRequest, "metadata: %v", err)
			}
		}
		want[key] = value
	}
	return want, nil
}
