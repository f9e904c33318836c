package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"agentvm/internal/storage/snapshot"
)

// FuzzKeptVM reads whatever is in NAME.vm.json, which is beside a snapshot. It is refused, or is what was kept: only a VM of the saved one's
// name gets its identity, what fails its check starts nothing, and it comes out the same when it is kept again.
func FuzzKeptVM(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"name":"dev"}`, `{"name":"dev","identity":null}`, `{"storeDir":"/s","identity":{}}`,
		`{"name":"dev","identity":{"id":"00112233445566778899aabbccddeeff","previewPort":80}}`,
		`{"name":"dev","identity":{"id":"../x","previewPort":-1}}`, `{"name":"dev","identity":{"id":"short","previewPort":65536}}`,
		`{"image":"alpine","memory":1073741824,"mounts":["/a:/b:ro"],"storeDir":"/s","hostname":"h","network":{"policy":{"mode":"public"},"forwards":["8080:80"]},"idleTimeout":"90s"}`,
		`{"sidecars":[{"name":"a","args":["b"],"restart":"never","backoff":"1s"}],"access":{"listenAllow":["1-5"]},"labels":{"a":"b"}}`,
		`{"memory":-1}`, `{"network":{"policy":{"allow":[]},"forwards":[]}}`, `{"idleTimeout":"1e9999s"}`, `{"network":{"policy":{"allow":["*"]}}}`, `{"mounts":["\u0000:/x"],"env":["=","A"]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "clean.snap")
		if err := os.WriteFile(snapshot.CompanionPath(path), b, 0o600); err != nil {
			t.Fatal(err)
		}
		kept, err := readKept(path)
		config, configErr := keptConfig(path)
		other, otherErr := keptIdentity(path, "no "+kept.Name)
		if (err == nil) != (configErr == nil) || (err == nil) != (otherErr == nil) || other != nil {
			t.Fatalf("%v, %v, %v; another VM gets identity %v", err, configErr, otherErr, other)
		}
		if err != nil {
			return
		}
		_ = config.Validate()
		if identity, err := keptIdentity(path, kept.Name); err != nil || !reflect.DeepEqual(identity, kept.Identity) {
			t.Errorf("identity %v, %v", identity, err)
		}
		// What is given on is written again, in the VM's folder or beside a snapshot of it.
		once, err := json.Marshal(kept)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if err := keepConfig(path, kept); err != nil {
			t.Fatal(err)
		}
		again, err := readKept(path)
		if err != nil {
			t.Fatalf("what was written cannot be read: %s: %v", once, err)
		}
		twice, err := json.Marshal(again)
		if err != nil {
			t.Fatal(err)
		}
		if want, got := keptSettings(t, once), keptSettings(t, twice); !reflect.DeepEqual(want, got) {
			t.Errorf("kept as\n%s\nand then as\n%s", once, twice)
		}
	})
}

// keptSettings are what a JSON document sets: an empty list, object or text sets nothing, as if its key were not there.
func keptSettings(t *testing.T, document []byte) any {
	t.Helper()
	var value any
	if err := json.Unmarshal(document, &value); err != nil {
		t.Fatal(err)
	}
	return withoutEmpty(value)
}

func withoutEmpty(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			if value[key] = withoutEmpty(v); value[key] == nil {
				delete(value, key)
			}
		}
		if len(value) == 0 {
			return nil
		}
	case []any:
		if len(value) == 0 {
			return nil
		}
	case string:
		if value == "" {
			return nil
		}
	}
	return value
}

// The comment of an imported snapshot reaches the shell without what a terminal interprets, and as one line.
func TestCompletionOfImportedSnapshots(t *testing.T) {
	e := snapshot.Entry{Name: "a", Meta: snapshot.Meta{Comment: "\x1b]0;title\x07\nb\t-x\r\x9b"}}
	if got, want := string(completionOf(e)), "a\t?]0;title??b?-x??"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
