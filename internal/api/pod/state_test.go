package pod_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentvm/internal/api/pod"
)

// TestState has a sandbox written to an object store once, run on when that fails, and made again elsewhere with what its client has asked for.
func TestState(t *testing.T) {
	key, kept := newKey(t), filepath.Join(t.TempDir(), "sandbox.json")
	s := serve(t, key, kept)
	const to = `{"name":"there","url":"file:///x","key":"y"}`
	if code, text := s.do("POST", "/sandboxes/one/hibernate", to); code != 404 {
		t.Error("no sandbox:", code, text)
	}
	if code, text := s.do("POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":"b"},"envVars":{"C":"d"}}`, pod.HeaderNew, "one="+token); code != 201 {
		t.Fatal(code, text)
	}
	state := func() string {
		_, text := s.do("GET", "/sandboxes/one", "")
		if strings.Contains(text, `"state":"running"`) {
			return "running"
		}
		return "paused"
	}
	if code, text := s.do("PUT", "/sandboxes/one/network", `{"denyOut":["198.51.100.0/24"]}`); code != 204 {
		t.Fatal(code, text)
	}
	s.vms.fails = errors.New("the object store is full")
	if code, text := s.do("POST", "/sandboxes/one/hibernate", to); code != 502 || !strings.Contains(text, "is full") || state() != "running" {
		t.Error(code, text, state())
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error("a restart of the container would lose it:", err)
	}
	s.vms.fails = nil
	for range 2 { // a gateway was killed, and another one asks again
		if code, text := s.do("POST", "/sandboxes/one/hibernate", to); code != 204 || state() != "paused" {
			t.Error(code, text, state())
		}
	}
	if want := []string{" there", " there"}; !slices.Equal(s.vms.saved, want) { // with the one that failed
		t.Errorf("saved %q", s.vms.saved)
	}
	if note := string(s.vms.note); !strings.Contains(note, `"C":"d"`) || !strings.Contains(note, "198.51.100.0/24") {
		t.Errorf("what the client has asked for: %s", note)
	}
	if made, err := serve(t, key, kept).Continue(t.Context()); made || err != nil {
		t.Error("a restart of the container starts it a second time:", made, err)
	}

	other := serve(t, key, kept)
	other.vms.note = s.vms.note
	if code, text := other.do("POST", pod.PathRestore, `{"name":"elsewhere"}`, pod.HeaderNew, "one="+token); code != 404 {
		t.Error("it is not there:", code, text)
	}
	if code, text := other.do("POST", pod.PathRestore, to, pod.HeaderNew, "one="+token); code != 201 || other.vms.restored != 1 || other.vms.taken != 0 {
		t.Fatal(code, text)
	}
	if code, text := other.do("GET", "/sandboxes/one", ""); code != 200 || !strings.Contains(text, `"a":"b"`) || !strings.Contains(text, token) {
		t.Error(code, text)
	}
	if code, text := other.do("POST", pod.PathRestore, to, pod.HeaderNew, "two="+token); code != 409 {
		t.Error("a second sandbox:", code, text)
	}
	if made, err := serve(t, key, kept).Continue(t.Context()); !made || err != nil {
		t.Error("a restart of the container has lost it:", made, err)
	}
}

// TestSnapshot has a sandbox written that runs on, and another one made of it, of which its client says everything but the processes.
func TestSnapshot(t *testing.T) {
	key := newKey(t)
	s := serve(t, key, filepath.Join(t.TempDir(), "sandbox.json"))
	const to = `{"name":"there","url":"file:///x","key":"y"}`
	if code, text := s.do("POST", "/sandboxes/one/snapshot", to); code != 404 {
		t.Error("no sandbox:", code, text)
	}
	if code, text := s.do("POST", "/v2/sandboxes", `{"templateID":"base","metadata":{"a":"b"},"envVars":{"C":"d"}}`, pod.HeaderNew, "one="+token); code != 201 {
		t.Fatal(code, text)
	}
	s.vms.fails = errors.New("the object store is full")
	if code, text := s.do("POST", "/sandboxes/one/snapshot", to); code != 502 || !strings.Contains(text, "is full") {
		t.Error(code, text)
	}
	s.vms.fails = nil
	for range 2 { // each time anew: the sandbox has changed
		if code, text := s.do("POST", "/sandboxes/one/snapshot", to); code != 204 {
			t.Error(code, text)
		}
	}
	if _, text := s.do("GET", "/sandboxes/one", ""); len(s.vms.saved) != 3 || !strings.Contains(text, `"state":"running"`) {
		t.Errorf("saved %q; %s", s.vms.saved, text)
	}

	kept := filepath.Join(t.TempDir(), "sandbox.json")
	other := serve(t, key, kept)
	other.vms.note = s.vms.note
	restore := func(creation string) (int, string) {
		return other.do("POST", pod.PathRestore, strings.TrimSuffix(to, "}")+`,"creation":`+creation+`}`, pod.HeaderNew, "two="+token)
	}
	for _, creation := range []string{`"no object"`, `null`} {
		if code, text := restore(creation); code != 400 {
			t.Error(code, text)
		}
	}
	if code, text := restore(`{"templateID":"base","timeout":1,"metadata":{"e":"f"}}`); code != 201 || other.vms.restored != 1 || other.vms.taken != 0 {
		t.Fatal(code, text)
	}
	if _, text := other.do("GET", "/sandboxes/two", ""); !strings.Contains(text, `"e":"f"`) || strings.Contains(text, `"a":"b"`) {
		t.Error(text)
	}
	if text, err := os.ReadFile(kept); err != nil || strings.Contains(string(text), `"C"`) || !strings.Contains(string(text), "two=") {
		t.Errorf("what a restart of the container makes: %s, %v", text, err)
	}
}
