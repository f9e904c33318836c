package fleet

import (
	"net/http"
	"strings"

	"agentvm/internal/api/e2b/wire"
)

// passed are the operations of a sandbox's VM that its pod answers, as tenants ask for them: each is here because it can do nothing beyond the
// sandbox. All others are the gateway's own, or no one's: what makes VMs that the gateway does not know, ends this one behind its back, changes the
// policy of the pool, or opens something of the pod.
var passed = []string{
	"GET /v1/vms/{vm}/stats",
	"POST /v1/vms/{vm}/exec",
	"POST /v1/vms/{vm}/exec/stream",
	"GET /v1/vms/{vm}/jobs",
	"POST /v1/vms/{vm}/jobs",
	"GET /v1/vms/{vm}/jobs/{job}",
	"DELETE /v1/vms/{vm}/jobs/{job}",
	"GET /v1/vms/{vm}/jobs/{job}/output",
	"POST /v1/vms/{vm}/jobs/{job}/input",
	"POST /v1/vms/{vm}/jobs/{job}/signal",
	"GET /v1/vms/{vm}/files",
	"PUT /v1/vms/{vm}/files",
	"DELETE /v1/vms/{vm}/files",
	"GET /v1/vms/{vm}/files/info",
	"GET /v1/vms/{vm}/files/list",
	"POST /v1/vms/{vm}/files/directory",
	"POST /v1/vms/{vm}/files/move",
	"GET /v1/vms/{vm}/network",
	"GET /v1/vms/{vm}/network/denials",
	"GET /v1/vms/{vm}/network/flows",
	"GET /v1/vms/{vm}/network/events",
	"GET /v1/vms/{vm}/ports",
}

// passedSockets are those that may become WebSockets.
var passedSockets = []string{
	"GET /v1/vms/{vm}/exec/stream",
	"GET /v1/vms/{vm}/terminal",
}

// envdCalls are what E2B's SDK asks of a sandbox's envd, with the sandbox's token.
var envdCalls = []string{
	"GET /health",
	"GET /files",
	"POST /files",
	"POST /process.Process/List",
	"POST /process.Process/Start",
	"POST /process.Process/Connect",
	"POST /process.Process/Update",
	"POST /process.Process/SendInput",
	"POST /process.Process/SendSignal",
	"POST /process.Process/CloseStdin",
	"POST /filesystem.Filesystem/Stat",
	"POST /filesystem.Filesystem/MakeDir",
	"POST /filesystem.Filesystem/Move",
	"POST /filesystem.Filesystem/ListDir",
	"POST /filesystem.Filesystem/Remove",
	"POST /filesystem.Filesystem/WatchDir",
	"POST /filesystem.Filesystem/CreateWatcher",
	"POST /filesystem.Filesystem/GetWatcherEvents",
	"POST /filesystem.Filesystem/RemoveWatcher",
}

// pass leads a request of a tenant to the pod of a sandbox.
func (g *Gateway) pass(w http.ResponseWriter, c caller, b *sandbox, sockets bool) error {
	switch {
	case b.Paused:
		return wire.Fail(http.StatusConflict, "%s is paused: POST /v1/vms/%s/resume resumes it", b.id, b.id)
	case c.URL.RawPath != "": // the pod could read another path than the one that was looked at here
		return wire.Fail(http.StatusBadRequest, "%.200q: write the path without escapes", c.URL.RawPath)
	case c.Header.Get("Upgrade") != "" && !sockets:
		return wire.Fail(http.StatusBadRequest, "%s %.200q is no WebSocket", c.Method, c.URL.Path)
	}
	g.forward(w, c.Request, b, "localhost")
	return nil
}

// notPassed is the answer to what is not in the lists. methods are those that the path takes, if any.
func notPassed(c caller, b *sandbox, methods string) error {
	rest, status := c.PathValue("rest"), http.StatusNotImplemented
	if methods != "" {
		status = http.StatusMethodNotAllowed
	}
	switch {
	case rest == "network" || strings.HasPrefix(rest, "network/") && methods == "":
		return wire.Fail(status, "the network policy of a VM in a cluster is narrowed by E2B's PUT /sandboxes/%s/network", b.id)
	case rest == "forks" || rest == "snapshots":
		return wire.Fail(status, "%s of a VM in a cluster are made by E2B's POST /sandboxes/%s/...", rest, b.id)
	case methods != "":
		return wrongMethod(c, methods)
	}
	return wire.Fail(status, "%s %.200q is not served for VMs in a cluster: docs/guide/kubernetes.md lists what is", c.Method, rest)
}
