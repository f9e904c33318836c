package main

import "testing"

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
