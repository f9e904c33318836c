package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"agentvm/internal/work/job"
)

// FuzzKeptFiles reads arbitrary content of the files of a VM: its configuration, identity, end, restore.json, and the record of a job.
// Each is refused, or passes its check and is the same after it was written again.
func FuzzKeptFiles(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"image":"alpine","memory":1073741824,"mounts":["/a:/b:ro"],"network":{"policy":{"mode":"public"},"forwards":["8080:80"]},"idleTimeout":"90s"}`,
		`{"id":"00112233445566778899aabbccddeeff","previewPort":80}`, `{"ended":"2026-01-02T03:04:05Z","error":"x","crashed":true}`,
		`{"snapshot":"/a.snap","identity":{"id":"00112233445566778899aabbccddeeff"}}`, `{"id":"0a0b0c0d","args":["a"],"durable":true}`,
		`{"sidecars":[{"name":"a","args":["b"],"restart":"never","backoff":"1s"}],"access":{"listenAllow":["1-5"]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := paths{t.TempDir()}
		dir := filepath.Join(p.jobs(), "0a0b0c0d")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{p.config(), p.identity(), p.end(), p.restore(), job.RecordPath(dir)} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c, err := readConfig(p.config()); err == nil {
			_ = c.Validate()
			again, err := json.Marshal(c)
			if err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
			var second Config
			if err := json.Unmarshal(again, &second); err != nil {
				t.Fatalf("what was written cannot be read: %s: %v", again, err)
			}
		}
		if i, err := p.readIdentity(); err == nil && i.check() != nil {
			t.Errorf("%+v", i)
		}
		_, _ = p.readEnd()
		if r, err := p.readRestoration(); err == nil && (r == nil || !filepath.IsAbs(r.Snapshot)) {
			t.Errorf("%+v", r)
		}
		m := newJobs(p.jobs(), newLogger(t.Output(), false), time.Now, nil)
		m.Peek(p.jobs(), errUnseen)
		m.Close()
	})
}
