package fleet_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentvm/internal/api/serve"
)

// TestPassedOperations sends every operation of the HTTP API as a tenant does: those that reach the pod are those that are written here, so that a
// new one of serve is no one's until someone has thought about it.
func TestPassedOperations(t *testing.T) {
	c := newCluster(t)
	c.warm(1)
	g := c.gateway("a")
	id, _ := g.create("red", `{"templateID":"base"}`)

	text, err := serve.Document("test")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	const at = "/v1/vms/{vm}"
	want := []string{
		"GET " + at, "GET " + at + "/stats", "POST " + at + "/exec", "POST " + at + "/exec/stream", "GET " + at + "/exec/stream", "GET " + at + "/terminal",
		"GET " + at + "/jobs", "POST " + at + "/jobs", "GET " + at + "/jobs/{job}", "DELETE " + at + "/jobs/{job}", "GET " + at + "/jobs/{job}/output", "POST " + at + "/jobs/{job}/input", "POST " + at + "/jobs/{job}/signal",
		"GET " + at + "/files", "PUT " + at + "/files", "DELETE " + at + "/files", "GET " + at + "/files/info", "GET " + at + "/files/list", "POST " + at + "/files/directory", "POST " + at + "/files/move",
		"GET " + at + "/network", "GET " + at + "/network/denials", "GET " + at + "/network/flows", "GET " + at + "/network/events", "GET " + at + "/ports",
	}
	gateways := []string{"GET /v1/vms", "POST /v1/vms", "DELETE " + at, "POST " + at + "/pause", "POST " + at + "/resume"} // its own
	parameter := regexp.MustCompile(`\{[a-z]+\}`)
	reaches := func(method, path string, headers ...string) bool {
		_, text := g.do(method, parameter.ReplaceAllString(strings.Replace(path, "{vm}", id, 1), "x"), "red", "{}", headers...)
		return strings.HasPrefix(text, "the pod's: ")
	}
	var known []string
	for path, methods := range document.Paths {
		for method := range methods {
			operation := strings.ToUpper(method) + " " + path
			known = append(known, operation)
			if slices.Contains(gateways, operation) {
				continue
			}
			if passes, may := reaches(strings.ToUpper(method), path), slices.Contains(want, operation); passes != may {
				t.Errorf("%s: reaches the pod: %v, want %v", operation, passes, may)
			}
			socket := operation == "GET "+at+"/exec/stream" || operation == "GET "+at+"/terminal"
			if reaches(strings.ToUpper(method), path, "Connection", "Upgrade", "Upgrade", "websocket") && !socket {
				t.Errorf("%s passes as a WebSocket", operation)
			}
		}
	}
	for _, operation := range slices.Concat(want, gateways) {
		if !slices.Contains(known, operation) {
			t.Errorf("%s is no operation of the HTTP API", operation)
		}
	}
	for _, method := range []string{http.MethodPatch, http.MethodOptions, http.MethodTrace, "BREW"} {
		for _, path := range []string{at, at + "/exec", at + "/network", at + "/files"} {
			if reaches(method, path) {
				t.Errorf("%s %s reaches the pod", method, path)
			}
		}
	}
	for _, path := range []string{at + "/network/", at + "/exec/../forks", at + "/jobs/..%2fnetwork", at + "/jobs/a%2f..%2f..%2fforks/signal", at + "/%66orks", at + "/exec%2f..%2fforks"} {
		for _, method := range []string{"GET", "POST", "PUT"} {
			if reaches(method, path) {
				t.Errorf("%s %s reaches the pod", method, path)
			}
		}
	}
	if code, text := g.do("PUT", "/v1/vms/"+id+"/network", "red", `{"mode":"open"}`); code != 405 || !strings.Contains(text, "/sandboxes/"+id+"/network") {
		t.Errorf("network: %d %s", code, text)
	}
}

// TestWrongMethods has each path answer other methods with 405 and what it takes, and without a key with 401 as any request.
func TestWrongMethods(t *testing.T) {
	c := newCluster(t)
	c.warm(1)
	g := c.gateway("a")
	id, _ := g.create("red", `{"templateID":"base"}`)
	vm := "/v1/vms/" + id
	for _, test := range []struct{ method, path, allow string }{
		{"PATCH", "/v1/vms", "GET, HEAD, POST"},
		{"PUT", vm, "GET, HEAD, DELETE"},
		{"GET", vm + "/pause", "POST"},
		{"DELETE", vm + "/exec", "POST"},
		{"POST", vm + "/files", "GET, HEAD, PUT, DELETE"},
		{"DELETE", vm + "/jobs", "GET, HEAD, POST"},
		{"PUT", vm + "/network", "GET, HEAD"},
		{"POST", vm + "/network/flows", "GET, HEAD"},
		{"PUT", "/sandboxes/" + id, "GET, HEAD, DELETE"},
		{"GET", "/sandboxes/" + id + "/pause", "POST"},
		{"DELETE", "/v2/sandboxes", "GET, HEAD, POST"},
		{"DELETE", "/snapshots", "GET, HEAD"},
		{"PUT", "/files", "GET, HEAD, POST"},
		{"GET", "/process.Process/Start", "POST"},
		{"BREW", "/v1/vms", "GET, HEAD, POST"},
	} {
		code, text, header := g.ask(test.method, test.path, "red", "")
		if code != http.StatusMethodNotAllowed || header.Get("Allow") != test.allow {
			t.Errorf("%s %s: %d %s, Allow %q, want %q", test.method, test.path, code, text, header.Get("Allow"), test.allow)
		}
		if code, text := g.do(test.method, test.path, "", ""); code != http.StatusUnauthorized {
			t.Errorf("%s %s without a key: %d %s", test.method, test.path, code, text)
		}
	}
	for path, allow := range map[string]string{"/v1/nothing": "", vm + "/nothing": "", vm + "/forks": "", "/templates": ""} {
		if code, text, header := g.ask("POST", path, "red", ""); code != http.StatusNotImplemented || header.Get("Allow") != allow {
			t.Errorf("POST %s: %d %s, Allow %q", path, code, text, header.Get("Allow"))
		}
	}
}
