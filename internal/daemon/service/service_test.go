package service

import (
	"encoding/binary"
	"encoding/xml"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode/utf16"
)

var update = flag.Bool("update", false, "write testdata anew")

// hostile has what each of the formats must quote.
func hostile(system string) Service {
	s := Service{
		Program: `/opt/a b/50%$HOME/agent&vm`, Args: []string{"service", "start", "", `a\`, `<&>"' %h ${X}`},
		Env: []string{`AGENTVM_STORE=/srv/<vms> & "100%"/$x\`, "EMPTY="}, Log: "/Users/me/Library/Logs/agentvm.log",
	}
	if system == "windows" {
		s.Program, s.Env, s.User = `C:\Program Files\agentvm.exe`, nil, `HOST\me & you`
	}
	return s
}

func TestFiles(t *testing.T) {
	for _, system := range []string{"linux", "darwin", "windows"} {
		f, err := For(system, hostile(system), "/home/me/.config", "/Users/me")
		if err != nil {
			t.Fatal(err)
		}
		golden := filepath.Join("testdata", system)
		if *update {
			if err := os.WriteFile(golden, f.Text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || string(want) != string(f.Text) {
			t.Errorf("%s: %v; go test -update writes it anew:\n%s", system, err, f.Text)
		}
	}
}

// TestUnit has systemd read what it is to run.
func TestUnit(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("systemd-analyze is missing (Debian: systemd)")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, `a b 50%$x;&`)
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := hostile("linux")
	s.Program = program
	f, err := For("linux", s, dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "agentvm.service")
	if err := os.WriteFile(path, f.Text, 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(tool, "--user", "verify", path)
	command.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
	if output, err := command.CombinedOutput(); err != nil || strings.Contains(string(output), "agentvm.service") {
		t.Errorf("%v\n%s\n%s", err, output, f.Text)
	}
}

// TestXML reads what has been quoted back.
func TestXML(t *testing.T) {
	for system, want := range map[string][]string{
		"darwin":  append([]string{hostile("").Program, "AGENTVM_STORE", `/srv/<vms> & "100%"/$x\`}, hostile("").Args...),
		"windows": {`C:\Program Files\agentvm.exe`, `HOST\me & you`, `service start "" a\ "<&>\"' %h ${X}"`},
	} {
		f, err := For(system, hostile(system), "", "/Users/me")
		if err != nil {
			t.Fatal(err)
		}
		text := string(f.Text)
		if system == "windows" {
			var units []uint16
			for b := f.Text[2:]; len(b) > 0; b = b[2:] {
				units = append(units, binary.LittleEndian.Uint16(b))
			}
			text = strings.Replace(string(utf16.Decode(units)), ` encoding="UTF-16"`, "", 1)
		}
		found := map[string]bool{"": true}
		for d := xml.NewDecoder(strings.NewReader(text)); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", system, err, text)
			}
			if data, ok := token.(xml.CharData); ok {
				found[string(data)] = true
			}
		}
		for _, s := range want {
			if !found[s] {
				t.Errorf("%s: %q is missing in\n%s", system, s, text)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for what, c := range map[string]struct {
		system string
		s      Service
	}{
		"relative":              {"linux", Service{Program: "agentvm"}},
		"a newline":             {"linux", Service{Program: "/a\nExecStartPre=/bin/rm"}},
		"one in an argument":    {"darwin", Service{Program: "/a", Args: []string{"\x00"}}},
		"one in a variable":     {"linux", Service{Program: "/a", Env: []string{"A=\n[Install]"}}},
		"what systemd will not": {"linux", Service{Program: `/a"b`}},
		"a task's variables":    {"windows", Service{Program: `C:\a`, Env: []string{"A=b"}}},
		"an unknown system":     {"plan9", Service{Program: "/a"}},
		"one in a log's name":   {"darwin", Service{Program: "/a", Log: "/a\r"}},
	} {
		if runtime.GOOS == "windows" && strings.HasPrefix(c.s.Program, "/") {
			continue
		}
		if f, err := For(c.system, c.s, "/c", "/h"); err == nil {
			t.Errorf("%s: %s", what, f.Text)
		}
	}
}
