package serve

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"agentvm/client"
	"agentvm/internal/httpserver"
)

// TestQueries sends each operation a parameter that it does not have, one twice, and a query that is none: nothing that a client sends is left unused
// without a word.
func TestQueries(t *testing.T) {
	store, err := client.OpenStore(client.StoreOptions{Dir: t.TempDir(), Program: "/nonexistent/agentvm"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Store: store, Saved: noSaved{}, Keys: httpserver.Keys{{Name: "test", Value: testKey}}})
	if err != nil {
		t.Fatal(err)
	}
	path := strings.NewReplacer("{vm}", "dev", "{job}", "1", "{snapshot}", "saved")
	problem := func(method, at string) (status int, p Problem) {
		t.Helper()
		r := httptest.NewRequest(method, "http://127.0.0.1"+at, nil)
		r.Header.Set("Authorization", "Bearer "+testKey)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			p.Detail = w.Body.String()
		}
		return w.Code, p
	}
	for _, r := range s.routes {
		at := path.Replace(r.path)
		if status, p := problem(r.method, at+"?Path=/x"); status != 400 || p.Field != "Path" || !strings.Contains(p.Detail, `no parameter "Path"`) {
			t.Errorf("%s %s with an unknown parameter: %d %+v", r.method, at, status, p)
		}
		if status, p := problem(r.method, at+"?a;b"); status != 400 || !strings.Contains(p.Detail, "query") {
			t.Errorf("%s %s with no query: %d %+v", r.method, at, status, p)
		}
		for _, parameter := range r.query {
			if status, p := problem(r.method, at+"?"+parameter.name+"=1&"+parameter.name+"=2"); status != 400 || p.Field != parameter.name {
				t.Errorf("%s %s with %s twice: %d %+v", r.method, at, parameter.name, status, p)
			}
			if _, p := problem(r.method, at+"?"+parameter.name+"=/x"); strings.Contains(p.Detail, "no parameter") {
				t.Errorf("%s %s with %s: %+v", r.method, at, parameter.name, p)
			}
		}
	}
}
