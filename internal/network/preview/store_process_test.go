package preview

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/test/testclock"
)

// TestEarlierStores opens stores that agentvm wrote with another implementation of SQLite (modernc.org/sqlite 1.61): one that was closed, and one
// whose process was killed, of which all is in the WAL. The key and the links are those of both.
func TestEarlierStores(t *testing.T) {
	const valid, revoked, expired = "04fp0qaogsisc28cb084nl8ri6lnjb32s74rbnrv4ott1puteibr1ddkn12i8vg",
		"04fp2qan8eqsc28cb084nl8r9ccir4tcc2845g9dnt360s79ovsic5jgdotaei8", "04050qan6ngncaaih2n3r9rkv30nd56odi1fu9pirg4uhgbun5vqg5fsd37tv6o"
	for name, files := range map[string][]string{
		"closed": {"closed.db", "preview.key"},
		"killed": {"previews.db", "previews.db-wal", "preview.key"},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testclock.New()
			clock.Advance(10 * time.Minute)
			folder := t.TempDir()
			for _, file := range files {
				b, err := fs.ReadFile(os.DirFS("testdata/store"), file)
				if err == nil {
					err = os.WriteFile(filepath.Join(folder, file), b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			s := openStore(t, filepath.Join(folder, files[0]), Options{Now: clock.Now})
			for token, want := range map[string]error{valid: nil, revoked: ErrRevoked, expired: ErrExpired} {
				if _, err := s.Check(t.Context(), token); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", token, err, want)
				}
			}
			if p := create(t, s, "dev", 90, 0); p.Port != 90 {
				t.Errorf("made %+v", p)
			}
		})
	}
}

// TestKilledProcesses has processes that write one file at the same time, and that are killed meanwhile: what they said that they made is there.
func TestKilledProcesses(t *testing.T) {
	const variable = "PREVIEW_TEST_STORE"
	if path := os.Getenv(variable); path != "" {
		s := openStore(t, path, Options{})
		for i := 0; ; i++ {
			p := create(t, s, fmt.Sprintf("vm%d-%d", os.Getpid(), i/MaxPerVM), 80, 0)
			fmt.Println("token", p.Token)
		}
	}
	path := filepath.Join(t.TempDir(), "previews.db")
	openStore(t, path, Options{}) // the key, which they share
	var tokens []string
	for range 3 {
		var outputs []*bufio.Scanner
		var children []*exec.Cmd
		for range 2 {
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledProcesses$")
			child.Env = append(os.Environ(), variable+"="+path)
			output, err := child.StdoutPipe()
			if err == nil {
				err = child.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			outputs, children = append(outputs, bufio.NewScanner(output)), append(children, child)
		}
		for range 15 {
			for _, output := range outputs {
				token := ""
				for token == "" && output.Scan() {
					if after, ok := strings.CutPrefix(output.Text(), "token "); ok {
						token = after
					}
				}
				if token == "" {
					t.Fatalf("a process ended: %v", output.Err())
				}
				tokens = append(tokens, token)
			}
		}
		for _, child := range children {
			_ = child.Process.Kill()
			_ = child.Wait()
		}
	}
	s := openStore(t, path, Options{})
	for _, token := range tokens {
		if _, err := s.Check(t.Context(), token); err != nil {
			t.Errorf("%s: %v", token, err)
		}
	}
}
