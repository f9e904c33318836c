package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/tail"
	"github.com/google/go-cmp/cmp"
)

func TestReadLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	tests := []struct {
		name, text string
		want       []string
	}{
		{"empty", "", nil},
		{"lines", "a\nb\n", []string{"a", "b"}},
		{"last without an end", "a\nb", []string{"a", "b"}},
		{"empty lines", "\n\na\n", []string{"", "", "a"}},
		{"long", strings.Repeat("x", 200_000) + "\ny\n", []string{strings.Repeat("x", 200_000), "y"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var got []string
			err := readLines(context.Background(), path, nil, func(line []byte) error {
				got = append(got, string(line))
				return nil
			})
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("error %v, (-want +got):\n%s", err, diff)
			}
		})
	}
	if err := os.WriteFile(path, make([]byte, tail.MaxLine+2), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readLines(context.Background(), path, nil, func([]byte) error { return nil }); err == nil {
		t.Error("a line without an end was read")
	}
}

func TestReadLinesFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo := func(text string) {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			t.Error(err)
		}
	}
	appendTo("a\nb")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	steps := map[string]func(){
		"a":  func() { appendTo("b\n") },
		"bb": func() { time.AfterFunc(3*followPause, func() { _ = os.WriteFile(path, []byte("c\n"), 0o600) }) },
		"c":  cancel,
	}
	var got []string
	err := readLines(ctx, path, logFilter{follow: true}.more(), func(line []byte) error {
		got = append(got, string(line))
		if step := steps[string(line)]; step != nil {
			step()
		}
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"a", "bb", "c"}) {
		t.Errorf("lines %q, %v", got, err)
	}
}

// TestReadLinesOfRotatedFile has a log become its .1 while it is followed, which then ends.
func TestReadLinesOfRotatedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	write(path, "one line\n")
	ended := false
	var got []string
	err := readLines(t.Context(), path, func() bool { return !ended }, func(line []byte) error {
		got = append(got, string(line))
		switch string(line) {
		case "one line":
			write(path+".1", "one line\ntwo\n")
			write(path, "3\n")
		case "3":
			ended = true
			write(path, "3\n4\nrest")
		}
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"one line", "two", "3", "4", "rest"}) {
		t.Errorf("lines %q, %v", got, err)
	}
}

const flowLog = `{"time":"2026-01-02T03:04:05Z","kind":"policy","verdict":"allow","reason":"start","message":"mode public"}
{"time":"2026-01-02T03:04:06Z","kind":"dns","verdict":"allow","names":["a.example"],"query":"A","answer":"192.0.2.1"}
{"time":"2026-01-02T03:04:06Z","kind":"tcp","verdict":"allow","flow":1,"source":"192.168.127.3:40000","destination":"192.0.2.1:443","names":["a.example"]}
{"time":"2026-01-02T03:04:07Z","kind":"tcp","verdict":"allow","flow":2,"source":"192.168.127.3:40001","destination":"192.0.2.2:443"}
not json
{"time":"2026-01-02T03:04:08Z","kind":"icmp","verdict":"allow","flow":3,"source":"192.168.127.3:0","destination":"192.0.2.2:0"}
{"time":"2026-01-02T03:04:08Z","kind":"tcp","verdict":"close","flow":1,"source":"192.168.127.3:40000","destination":"192.0.2.1:443","names":["a.example"],"sent":100,"received":12345,"seconds":1.5}
{"time":"2026-01-02T03:04:09Z","kind":"policy","verdict":"allow","reason":"start","message":"mode public"}
{"time":"2026-01-02T03:04:10Z","kind":"udp","verdict":"allow","flow":1,"source":"192.168.127.3:40002","destination":"192.0.2.3:123"}
{"time":"2026-01-02T03:04:11Z","kind":"tcp","verdict":"allow","flow":2,"source":"192.168.127.3:40003","destination":"192.0.2.4:80"}
{"time":"2026-01-02T03:04:12Z","kind":"tcp","verdict":"deny","flow":2,"source":"192.168.127.3:40003","destination":"192.0.2.4:80","reason":"mode-none"}
{"time":"2026-01-02T03:04:12Z","kind":"tcp","verdict":"close","flow":2,"source":"192.168.127.3:40003","destination":"192.0.2.4:80","seconds":1}
`

func TestRecordedFlows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(flowLog), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := recordedFlows(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, string(f.State)+" "+f.Protocol+" "+f.Target)
	}
	want := []string{
		"closed tcp a.example:443 (192.0.2.1)", "unknown tcp 192.0.2.2:443", "open udp 192.0.2.3:123/udp", "cut tcp 192.0.2.4:80",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
	if open := openFlows(list); len(open) != 1 || open[0].Protocol != "udp" {
		t.Errorf("open flows %+v", open)
	}
	if f := list[0]; f.Sent != 100 || f.Received != 12345 || f.Seconds != 1.5 {
		t.Errorf("flow %+v", f)
	}
}
