package fleet_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentvm/internal/serve"
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
	if code, text := g.do("PUT", "/v1/vms/"+id+"/network", "red", `{"mode":"open"}`); code != 501 || !strings.Contains(text, "/sandboxes/"+id+"/network") {
		t.Errorf("network: %d %s", code, text)
	}
}
