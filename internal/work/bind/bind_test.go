package bind

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"agentvm/internal/host/platform"
)

// TestProgramIsCurrent: program/build.sh has run after the last change of the guest's program.
func TestProgramIsCurrent(t *testing.T) {
	sums, err := os.ReadFile("program/sums")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"client.c", "client-riscv64", "client-arm64"} {
		b, err := os.ReadFile("program/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%x  %s\n", sha256.Sum256(b), name); !strings.Contains(string(sums), want) {
			t.Errorf("%s has changed: run internal/work/bind/program/build.sh", name)
		}
	}
}

// TestArchive: a guest is given the program that its processor runs.
func TestArchive(t *testing.T) {
	for architecture, machine := range map[platform.Architecture]elf.Machine{platform.RISCV64: elf.EM_RISCV, platform.ARM64: elf.EM_AARCH64} {
		packed, err := Archive([]Command{{Name: "first"}, {Name: "second"}}, architecture)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string]string{} // contents, or where a link leads
		for archive := tar.NewReader(bytes.NewReader(packed)); ; {
			h, err := archive.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(content) + h.Linkname
		}
		program, err := elf.NewFile(strings.NewReader(files["bin/first"]))
		if err != nil || program.Machine != machine || files["bin/second"] != "first" {
			t.Errorf("%s: %v, %q", architecture, err, files["bin/second"])
		}
	}
	if _, err := Archive(nil, "mips"); err == nil || !strings.Contains(err.Error(), "linux/arm64") {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	run := func(context.Context, Call) error { return nil }
	for want, list := range map[string][]Command{
		"want a name":       {{Name: "../x", Run: run}},
		"two of that name":  {{Name: "x", Run: run}, {Name: "x", Run: run}},
		"no function":       {{Name: "x"}},
		"no JSON object":    {{Name: "x", Run: run, Schema: json.RawMessage(`[`)}},
		"a description has": {{Name: "x", Run: run, Description: strings.Repeat("x", maxDescription+1)}},
		"negative":          {{Name: "x", Run: run, Timeout: -1}},
		"at most 64":        make([]Command, 65),
	} {
		if _, err := Check(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	for name, want := range map[string]bool{"": false, ".x": false, "a b": false, "a\xff": false, "a/b": false, strings.Repeat("x", 65): false, "7z": true, "a.b_c-D": true, strings.Repeat("x", 64): true} {
		if _, err := Check([]Command{{Name: name, Run: run}}); (err == nil) != want {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if list, err := Check([]Command{{Name: "x", Run: run}}); err != nil || list[0].Timeout != DefaultTimeout {
		t.Error(list, err)
	}
}

// guest is a call by a guest that sends these bytes, and then reads everything.
func guest(t *testing.T, c Command, sent []byte) (read []byte, ended func()) {
	t.Helper()
	list, err := Check([]Command{c})
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	s, err := NewServer(list).Connect(context.Background(), func(do func()) error { calls.Go(do); return nil })
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = s.Write(sent) }() // ends with the connection
	read, _ = io.ReadAll(s)
	return read, func() { _ = s.Close(); calls.Wait() }
}

func header(words ...string) []byte {
	text := strings.Join(words, "\x00") + "\x00"
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// TestGuestThatLies: a guest that sends input for which no client has asked, or more of it, ends its call; nothing is kept of it.
func TestGuestThatLies(t *testing.T) {
	for name, sent := range map[string][]byte{
		"unasked":  append(header("x"), 4, 0, 0, 0, 'a', 'b', 'c', 'd'),
		"too much": append(header("x", "read"), 0xff, 0xff, 0xff, 0x7f),
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan error, 1)
			_, ended := guest(t, Command{Name: "x", Run: func(ctx context.Context, c Call) error {
				var err error
				if len(c.Args) > 0 {
					_, err = c.Stdin.Read(make([]byte, 10))
				}
				<-ctx.Done()
				got <- err
				return ctx.Err()
			}}, sent)
			defer ended()
			select {
			case err := <-got:
				if name == "too much" && err == nil {
					t.Error("the function has read what it did not ask for")
				}
			case <-time.After(time.Minute):
				t.Error("the call continues")
			}
		})
	}
}

// TestServerIsBounded: calls that send nothing count, and those beyond the bound are refused until others end.
func TestServerIsBounded(t *testing.T) {
	list, _ := Check([]Command{{Name: "x", Run: func(context.Context, Call) error { return nil }}})
	s := NewServer(list)
	var calls sync.WaitGroup
	run := func(do func()) error { calls.Go(do); return nil }
	ctx, cancel := context.WithCancel(context.Background())
	for range maxCalls {
		if _, err := s.Connect(ctx, run); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Connect(ctx, run); err == nil || !strings.Contains(err.Error(), "too many calls") {
		t.Errorf("one call more: %v", err)
	}
	cancel()
	calls.Wait()
	c, err := s.Connect(context.Background(), run)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	calls.Wait()
}

// FuzzArguments: whatever a guest sends gives words without NUL, or an error.
func FuzzArguments(f *testing.F) {
	f.Add(header("name", "a", "", "\xff"))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		words, err := readArguments(bytes.NewReader(b))
		if err == nil && (len(words) == 0 || strings.Contains(strings.Join(words, ""), "\x00") || !bytes.HasPrefix(b, header(words...))) {
			t.Errorf("%q from %q", words, b)
		}
	})
}
