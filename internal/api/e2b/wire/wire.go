// Package wire has what servers of E2B's control API have in common, whether the sandboxes are VMs of this process's host or pods of a cluster:
// its objects, errors, lists and names. It knows no VM, so that a program that only routes stays small.
package wire

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// EnvdVersion is the version of E2B's envd whose behaviour is served. The SDK asks it before it uses newer calls.
	EnvdVersion = "0.6.4"
	// EnvdPort is envd's in a sandbox.
	EnvdPort = 49983
	// DefaultTimeout is the life of a sandbox in seconds where the client says nothing, and MaxLifetime the longest.
	DefaultTimeout = 300
	MaxLifetime    = 24 * time.Hour

	maxJSON = 4 << 20 // bytes of a request in JSON
)

// Header names of requests to envd.
const (
	HeaderSandbox = "E2b-Sandbox-Id"
	HeaderPort    = "E2b-Sandbox-Port"
	HeaderToken   = "X-Access-Token"
)

// Sandbox is E2B's Sandbox: what create and connect answer.
type Sandbox struct {
	ID          string `json:"sandboxID"`
	Template    string `json:"templateID"`
	Client      string `json:"clientID"`
	EnvdVersion string `json:"envdVersion"`
	Token       string `json:"envdAccessToken,omitempty"`
	Domain      string `json:"domain,omitempty"`
}

// Detail is E2B's SandboxDetail and, without what is of one sandbox alone, its ListedSandbox.
type Detail struct {
	ID          string            `json:"sandboxID"`
	Template    string            `json:"templateID"`
	Alias       string            `json:"alias,omitempty"`
	Client      string            `json:"clientID"`
	Started     time.Time         `json:"startedAt"`
	Ends        time.Time         `json:"endAt"`
	State       string            `json:"state"` // running or paused
	CPUs        int               `json:"cpuCount"`
	MemoryMB    int64             `json:"memoryMB"`
	DiskMB      int64             `json:"diskSizeMB"`
	EnvdVersion string            `json:"envdVersion"`
	Metadata    map[string]string `json:"metadata"`

	Domain    string     `json:"domain,omitempty"`
	Token     string     `json:"envdAccessToken,omitempty"`
	Internet  *bool      `json:"allowInternetAccess,omitempty"`
	Lifecycle *Lifecycle `json:"lifecycle,omitempty"`
}

// Lifecycle says what happens at a sandbox's end.
type Lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // kill or pause
}

// States of a sandbox.
const (
	Running = "running"
	Paused  = "paused"
)

// WithMemory refuses a pause, or its end, that wants the files of a sandbox without its memory.
func WithMemory(memory *bool) error {
	if memory != nil && !*memory {
		return Fail(http.StatusBadRequest, "memory false is not supported: a sandbox is paused, and continues, with its memory")
	}
	return nil
}

// Failure is an error that clients get with a status.
type Failure struct {
	Status int
	Text   string
}

func (f *Failure) Error() string { return f.Text }

// Fail makes a Failure.
func Fail(status int, format string, args ...any) error {
	return &Failure{status, fmt.Sprintf(format, args...)}
}

// WriteJSON answers with a value.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// WriteNoSandbox is the answer of envd and of ports when a sandbox does not run.
func WriteNoSandbox(w http.ResponseWriter, id string) {
	WriteJSON(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox was not found", "code": 502})
}

// ReadJSON reads a request's body. An empty one leaves v as it is. Fields that v does not have are refused.
func ReadJSON(r *http.Request, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxJSON))
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); err != nil && !tooLong {
		return Fail(http.StatusBadRequest, "the request's body: %v", err)
	}
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return nil
	}
	if len(bytes.TrimSpace(b)) > 0 && !json.Valid(b) {
		return Fail(http.StatusBadRequest, "the request's JSON: want one value, which ends")
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields() // what is not understood may be what limits the sandbox
	if err := decoder.Decode(v); err != nil {
		return Fail(http.StatusBadRequest, "the request's JSON: %v", err)
	}
	return nil
}

// Lifetime reads a time-out in seconds.
func Lifetime(seconds *int, otherwise int) (time.Duration, error) {
	n := otherwise
	if seconds != nil {
		n = *seconds
	}
	if n < 0 || n > int(MaxLifetime/time.Second) {
		return 0, Fail(http.StatusBadRequest, "timeout: want 0 to %d seconds, not %d", int(MaxLifetime/time.Second), n)
	}
	return time.Duration(n) * time.Second, nil
}

// Token is the token of a sandbox's envd: computed, so that no server has to keep it.
func Token(key, id string) string {
	m := hmac.New(sha256.New, []byte(key))
	m.Write([]byte("envd\x00" + id))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// Signature is what signs the URL of a file. expires is "" for one without end.
func Signature(path, operation, user, token, expires string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expires != "" {
		text += ":" + expires
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// SplitHost takes PORT-ID.DOMAIN apart.
func SplitHost(host, domain string) (port uint16, id string, found bool) {
	label, rest, dotted := strings.Cut(host, ".")
	number, id, dashed := strings.Cut(label, "-")
	n, err := strconv.ParseUint(number, 10, 16)
	if !dotted || !dashed || err != nil || n == 0 || !strings.EqualFold(rest, domain) {
		return 0, "", false
	}
	return uint16(n), strings.ToLower(id), true
}
