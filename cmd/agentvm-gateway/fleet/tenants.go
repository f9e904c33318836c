package fleet

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"agentvm/internal/httpserver"
)

// Tenants are the keys of clients, each with its tenant's name.
type Tenants struct {
	httpserver.Keys
	Problems int // places in their file of which no key came
}

// readEvery is how long a file's keys are used before it is read again. Kubernetes replaces the files of a Secret.
const readEvery = 5 * time.Second

// TenantFile has the tenants of a file: TENANT KEY on each line, a tenant as often as it has keys. What the file does not say at this time is no
// key: a line that is wrong loses its own, and a file that is empty or cannot be read leaves none, so that a key can always be taken back.
type TenantFile struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu     sync.Mutex
	have   Tenants
	looked time.Time
	said   []string
}

// OpenTenants reads a file of tenants, which has to be there.
func OpenTenants(path string, log *slog.Logger, now func() time.Time) (*TenantFile, error) {
	t := &TenantFile{path: path, log: log, now: now}
	if _, err := ReadSecretFile(path); err != nil {
		return nil, err
	}
	t.Tenants()
	return t, nil
}

// Tenants returns what the file says. It may be called at once.
func (t *TenantFile) Tenants() Tenants {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); t.looked.IsZero() || now.Sub(t.looked).Abs() >= readEvery {
		t.looked = now
		var problems []string
		text, err := ReadSecretFile(t.path)
		if err != nil {
			problems = []string{err.Error()}
		}
		t.have.Keys, problems = readTenants(string(text), problems)
		t.have.Problems = len(problems)
		if len(problems) > 0 && !slices.Equal(problems, t.said) {
			t.log.Warn("not all tenants have keys", "file", t.path, "tenants", len(t.have.Keys), "problems", problems)
		}
		t.said = problems
	}
	return t.have
}

// readTenants adds to problems what is wrong, without the keys.
func readTenants(text string, problems []string) (keys httpserver.Keys, _ []string) {
	number := 0
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			problems = append(problems, fmt.Sprintf("line %d: want TENANT KEY", number))
			continue
		}
		key := httpserver.Key{Name: fields[0], Value: fields[1]}
		if err := CheckTenant(key); err != nil {
			problems = append(problems, fmt.Sprintf("line %d: %v", number, err))
			continue
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 && len(problems) == 0 {
		problems = append(problems, "it has no tenant, so that no one has a key")
	}
	return keys, problems
}
