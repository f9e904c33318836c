package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSequence(t *testing.T) {
	for _, tc := range []struct {
		name, sent string
		typed      bool
	}{
		{"position of the cursor", "\x1b[24;80R", false},
		{"what the terminal is", "\x1b[?62;22c", false},
		{"status", "\x1b[0n", false},
		{"mode", "\x1b[?2026;2$y", false},
		{"focus", "\x1b[I\x1b[O", false},
		{"colour, ended by a bell", "\x1b]10;rgb:ffff/ffff/ffff\a", false},
		{"colour", "\x1b]10;rgb:ffff/ffff/ffff\x1b\\", false},
		{"version", "\x1bP>|xterm(390)\x1b\\", false},
		{"cursor key", "\x1b[A", true},
		{"home", "\x1b[1~", true},
		{"function key", "\x1bOP", true},
		{"with Alt", "\x1bx", true},
		{"letter", "x", true},
		{"answer behind a letter", "x\x1b[0n", true},
		{"unfinished", "\x1b[0;", false},
		{"Enter ends what never ends", "\x1b]10\r", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &escapeReader{lineStart: true}
			for _, b := range []byte(tc.sent) {
				r.see(b)
			}
			if r.lineStart == tc.typed {
				t.Errorf("%q: at the beginning of a line: %v", tc.sent, r.lineStart)
			}
		})
	}
}

// TestHarmless: what is shown again of a terminal's output asks the terminal nothing, and keeps its text and styles.
func TestHarmless(t *testing.T) {
	for in, want := range map[string]string{
		"a\x1b[31mb\x1b[m\r\n":                              "a\x1b[31mb\x1b[m\r\n",
		"\x1b[6n\x1b[cx\x1b[5n\x1b]10;?\x07\x1bP+q54\x1b\\": "x",
		"\x1b]52;c;cm0gLXJm\x07y\x1b]0;title\x1b\\":         "y",
		"\x1b[2Jz\x1b[?1049h\x07\x0e\x7f":                   "z",
		"é\t\b\x1b[":                                        "é\t\b",
	} {
		if got := string(harmless([]byte(in))); got != want+"\x1b[m" {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestDetach(t *testing.T) {
	for in, want := range map[string]string{
		"ls\r": "ls\r", "a\x10\x11b": "a", "\x10\x11": "", "a\x10b": "a\x10b", "\x10\x10\x11": "\x10", "\x11\x10": "\x11", "\x10": "",
	} {
		for name, from := range map[string]io.Reader{"at once": strings.NewReader(in), "by bytes": iotest.OneByteReader(strings.NewReader(in))} {
			left := 0
			b := make([]byte, 64)
			r := &detachReader{from: from, leave: func() { left++ }}
			var got []byte
			for {
				n, err := r.Read(b)
				if got = append(got, b[:n]...); err != nil {
					if !errors.Is(err, io.EOF) {
						t.Error(err)
					}
					break
				}
			}
			if string(got) != want || left != 1 {
				t.Errorf("%q %s: %q, left %d times", in, name, got, left)
			}
		}
	}
}
