package main

import (
	"bytes"
	"log/slog"
	"testing"
)

// TestMessagesOutsideOfLines: a message does not fall into a line of the command, nor into a screen that it has.
func TestMessagesOutsideOfLines(t *testing.T) {
	for _, tc := range []struct {
		name     string
		terminal bool
		output   []string // "!" is a message
		want     string
	}{
		{"between lines", false, []string{"one\n", "!", "two\n"}, "one\nagentvm: m\ntwo\n"},
		{"within a line", false, []string{"one ", "!", "line\n", "two\n"}, "one line\nagentvm: m\ntwo\n"},
		{"before any output", false, []string{"!", "one\n"}, "agentvm: m\none\n"},
		{"in the last line", false, []string{"one\n", "tw", "!", "o"}, "one\ntwo\nagentvm: m\n"},
		{"several", false, []string{"a", "!", "!", "\n", "!"}, "a\nagentvm: m\nagentvm: m\nagentvm: m\n"},
		{"a terminal", true, []string{"a\r\n", "!", "b\r\n"}, "a\r\nb\r\nagentvm: m\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			l := &lines{out: &out}
			log := slog.New(&logHandler{lines: l})
			l.begin(tc.terminal)
			w := output{&out, nil, l}
			for _, text := range tc.output {
				if text == "!" {
					log.Warn("m")
				} else if _, err := w.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			l.end()
			log.Warn("after")
			if got := out.String(); got != tc.want+"agentvm: after\n" {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
