package preview

import (
	"net/http"
	"strconv"
	"testing"

	"agentvm/internal/httpserver/servertest"
)

// TestStrangers: who has no link gets nothing, and keeps no visitor out. Pages of any origin may use a link: it is all that a request needs.
func TestStrangers(t *testing.T) {
	w := newWorld(t, nil)
	w.vms.serve(t, "dev", 3000, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	p := create(t, w.store, "dev", 3000, 0)
	servertest.Attack(t, servertest.Target{
		Address: "127.0.0.1:" + strconv.Itoa(int(w.port)), Good: "GET /", Owner: p.Token, Denied: http.StatusNotFound, AnyOrigin: true, Landing: true,
		Show: func(key, path string) (string, []string) { return pathPrefix + key + path, nil },
	})
}
