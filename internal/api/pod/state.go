package pod

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/e2b/wire"
)

// State is where an object store has, or is to have, the VM of a sandbox. The gateway sends it with the request, so that a pod which keeps a
// warm VM has no credentials.
type State struct {
	URL  string `json:"url"`
	Name string `json:"name"`
	// Since names an earlier state of the sandbox, which has most of this one. "": none.
	Since string `json:"since,omitempty"`
	// Key is the tenant's, as the text of a key's file.
	Key string `json:"key"`
	// Creation is the request that makes a sandbox of a snapshot, in E2B's form. nil: what is restored is a sandbox that was hibernated, as it was.
	Creation json.RawMessage `json:"creation,omitempty"`
	// Credentials are variables of the store's provider. nil: the pod has its own, as by a workload's identity.
	Credentials map[string]string `json:"credentials,omitempty"`
}

// Saved is a VM in an object store.
type Saved interface {
	// Note is what VMs.Save was given.
	Note() []byte
	// Restore has the VM continue, with a policy, in place of the one that waits. adopt is client.Restoration.Adopt.
	Restore(ctx context.Context, policy egress.Policy, adopt []string) (e2b.VM, error)
}

// Paths of what gateways ask beyond E2B's protocol.
const (
	// PathRestore makes the pod's sandbox, which HeaderNew names, of a State. The statuses are those of POST /sandboxes; 404: it is not there.
	PathRestore = "/restore"
	// PathHibernate, after /sandboxes/ID, pauses a sandbox and writes it to a State. The sandbox stays, paused, until it is deleted. When it cannot
	// be written it runs on. Repeated, it does nothing new.
	PathHibernate = "/hibernate"
	// PathSnapshot, after /sandboxes/ID, writes a sandbox that runs to a State. It stands still for a moment only.
	PathSnapshot = "/snapshot"
)

// lifetime of a sandbox as e2b counts: the gateways end it.
var lifetime = []byte(strconv.Itoa(int(wire.MaxLifetime / time.Second)))

func writeFailure(w http.ResponseWriter, status int, format string, args ...any) {
	wire.WriteJSON(w, status, map[string]any{"code": status, "message": fmt.Sprintf(format, args...)})
}

// restore answers the request that makes the pod's sandbox of a state.
func (s *Server) restore(w http.ResponseWriter, r *http.Request, sandboxes http.Handler) {
	var from State
	if err := wire.ReadJSON(r, &from); err != nil {
		writeFailure(w, http.StatusBadRequest, "%v", err)
		return
	}
	saved, err := s.config.VMs.Fetch(r.Context(), from)
	body := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(saved.Note(), &body)
	}
	if err == nil && from.Creation != nil { // of the sandbox that was kept, the processes alone are this one's
		processes := body[e2b.KeyProcesses]
		body = nil
		if err := json.Unmarshal(from.Creation, &body); err != nil || body == nil {
			writeFailure(w, http.StatusBadRequest, "creation: want an object (%v)", err)
			return
		}
		body[e2b.KeyProcesses] = processes
	}
	if err != nil {
		status := http.StatusBadGateway
		if errors.Is(err, fs.ErrNotExist) {
			status = http.StatusNotFound
		}
		writeFailure(w, status, "%v", err)
		return
	}
	body["timeout"] = lifetime
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // valid JSON
	}
	again := r.Clone(context.WithValue(r.Context(), savedKey{}, saved))
	again.URL.Path = "/v2/sandboxes"
	s.make(w, again, text, sandboxes)
}

// savedKey is that of a Saved in the context of the request that makes its sandbox.
type savedKey struct{}

// firstVM returns the VM of the pod's first sandbox.
func (v sandboxVMs) firstVM(ctx context.Context, env []string, policy egress.Policy, adopt []string) (e2b.VM, error) {
	if saved, ok := ctx.Value(savedKey{}).(Saved); ok {
		return saved.Restore(ctx, policy, adopt)
	}
	return v.config.VMs.Take(ctx, env, policy)
}

// write answers a request that writes a sandbox to an object store, one after the other.
func (s *Server) write(w http.ResponseWriter, r *http.Request, do func(to State) error) {
	var to State
	if err := wire.ReadJSON(r, &to); err != nil {
		writeFailure(w, http.StatusBadRequest, "%v", err)
		return
	}
	select {
	case s.saving <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	defer func() { <-s.saving }()
	err := do(to)
	var f *wire.Failure
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.As(err, &f):
		writeFailure(w, f.Status, "%v", err)
	case errors.Is(err, client.ErrNotFound):
		writeFailure(w, http.StatusNotFound, "%v", err)
	default:
		writeFailure(w, http.StatusBadGateway, "%v", err)
	}
}

// snapshot answers the request that writes a sandbox which runs on.
func (s *Server) snapshot(w http.ResponseWriter, r *http.Request, id string) {
	s.write(w, r, func(to State) error {
		note, err := s.e2b.Creation(id)
		if err == nil {
			err = s.config.VMs.Save(r.Context(), s.vmName(id), to, note)
		}
		return err
	})
}

// hibernate answers the request that writes a sandbox which ends.
func (s *Server) hibernate(w http.ResponseWriter, r *http.Request, id string, sandboxes http.Handler) {
	s.write(w, r, func(to State) error {
		if s.saved[id] == to.Name {
			return nil
		}
		status, text := s.ask(r.Context(), sandboxes, "/sandboxes/"+id+"/pause", "")
		if status != http.StatusNoContent && status != http.StatusConflict { // it is paused already
			return wire.Fail(status, "pause: %s", text)
		}
		note, err := s.e2b.Creation(id)
		if err == nil {
			err = s.config.VMs.Save(r.Context(), s.vmName(id), to, note)
		}
		if err == nil {
			// What would make the sandbox again in this pod would make it a second time.
			if err = s.forget(id); err == nil {
				s.saved[id] = to.Name
				return nil
			}
		}
		if !errors.Is(err, client.ErrNotFound) {
			if code, text := s.ask(context.WithoutCancel(r.Context()), sandboxes, "/sandboxes/"+id+"/connect", `{"timeout":`+string(lifetime)+`}`); code >= 300 {
				err = errors.Join(err, fmt.Errorf("and it does not run on: %d %s", code, text))
			}
		}
		return err
	})
}

// ask sends the handler of e2b a request of this package's own.
func (s *Server) ask(ctx context.Context, sandboxes http.Handler, path, body string) (status int, text string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return http.StatusBadRequest, err.Error()
	}
	r.Header.Set("X-Api-Key", s.config.Key)
	a := answer{header: http.Header{}}
	sandboxes.ServeHTTP(&a, r)
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.status, string(bytes.TrimSpace(a.body.Bytes()))
}

// vmName is the name of a sandbox's VM for config.VMs.
func (s *Server) vmName(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == s.first {
		return ""
	}
	return id
}

// forget has a container that is started again not make a sandbox again.
func (s *Server) forget(id string) error {
	if s.config.Kept == "" || s.vmName(id) != "" {
		return nil
	}
	if err := os.Remove(s.config.Kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
