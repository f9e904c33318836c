// Command picture makes the picture of a terminal session that README.md shows, in two steps.
//
//	go run ./scripts/picture record docs/pictures/session.sh docs/pictures/session.cast
//	go run ./scripts/picture draw docs/pictures/session.cast docs/pictures/session.svg
//
// record has bash run the lines of a script one after the other in the working directory, and writes what they print, with its times, as asciicast
// v2. A player such as asciinema shows such a file. draw makes an SVG of all that a recording shows. A picture that is committed is what draw makes
// of the recording beside it: a test compares.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want record SCRIPT CAST, or draw CAST SVG")
	}
	from, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var to bytes.Buffer
	switch args[0] {
	case "record":
		err = record(&to, from)
	case "draw":
		err = draw(&to, from)
	default:
		err = fmt.Errorf("%s: want record or draw", args[0])
	}
	if err != nil {
		return err
	}
	return os.WriteFile(args[2], to.Bytes(), 0o644)
}

// columns is the width of the terminal. What is longer continues in the next line.
const columns = 92

// header is the first line of an asciicast.
type header struct {
	Version int `json:"version"`
	Width   int `json:"width"`
	Height  int `json:"height"`
}

// record runs the lines of a script. Empty ones and comments are not shown.
func record(w io.Writer, script []byte) error {
	var events bytes.Buffer
	began, height := time.Now(), 1
	show := func(text string) error {
		height += strings.Count(text, "\n")
		line, err := json.Marshal([]any{float64(time.Since(began).Milliseconds()) / 1000, "o", strings.ReplaceAll(text, "\n", "\r\n")})
		fmt.Fprintf(&events, "%s\n", line)
		return err
	}
	for line := range strings.Lines(string(script)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := show("$ " + line + "\n"); err != nil {
			return err
		}
		// A pipe for both streams: what they print stays in its order.
		command := exec.Command("bash", "-c", line)
		out, err := command.StdoutPipe()
		if err != nil {
			return err
		}
		command.Stderr = command.Stdout
		if err := command.Start(); err != nil {
			return err
		}
		for lines := bufio.NewReader(out); ; {
			text, err := lines.ReadString('\n')
			if text != "" {
				if err := show(text); err != nil {
					return err
				}
			}
			if err != nil {
				break // the command has closed its output
			}
		}
		_ = command.Wait() // a command that fails is part of the session, with what it has printed
	}
	first, err := json.Marshal(header{Version: 2, Width: columns, Height: height})
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n%s", first, events.Bytes())
	}
	return err
}

// Sizes in pixels of a monospaced font of 14 pixels.
const (
	cellWidth  = 8.43
	lineHeight = 20
	margin     = 18
	bar        = 30 // above the text, with the buttons of a window
)

// escape is a control sequence of a terminal, or a control character that moves its cursor or does something else.
var escape = regexp.MustCompile(`\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|.)|[\x00-\x08\x0b-\x1f\x7f]`)

// draw makes an SVG of the text of a recording. Lines that begin with a prompt have another colour; other colours and movements of the cursor are left out.
func draw(w io.Writer, cast []byte) error {
	first, rest, _ := bytes.Cut(cast, []byte("\n"))
	var h header
	if err := json.Unmarshal(first, &h); err != nil || h.Version != 2 || h.Width < 20 || h.Width > 500 {
		return fmt.Errorf("not an asciicast v2 of 20 to 500 columns: %.60s", first)
	}
	var text strings.Builder
	for line := range bytes.Lines(rest) {
		var event [3]any
		if err := json.Unmarshal(line, &event); err != nil {
			return fmt.Errorf("%.60s: %w", line, err)
		}
		if output, ok := event[2].(string); ok && event[1] == "o" {
			text.WriteString(output)
		}
	}
	lines := strings.Split(strings.TrimRight(escape.ReplaceAllString(text.String(), ""), "\n"), "\n")
	var body strings.Builder
	row := 0
	for _, line := range lines {
		class := ""
		if strings.HasPrefix(line, "$ ") {
			class = ` class="typed"`
		}
		for _, part := range wrapped(strings.ReplaceAll(line, "\t", "    "), h.Width) {
			fmt.Fprintf(&body, "<text%s x=\"%d\" y=\"%d\">%s</text>\n", class, margin, bar+margin+row*lineHeight, html.EscapeString(part))
			row++
		}
	}
	width, height := int(float64(h.Width)*cellWidth)+2*margin, bar+row*lineHeight+margin
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="A session in a terminal">
<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9;white-space:pre}.typed{fill:#7ee787}</style>
<rect width="%[1]d" height="%[2]d" rx="8" fill="#0d1117"/>
<circle cx="20" cy="16" r="5" fill="#ff5f56"/><circle cx="38" cy="16" r="5" fill="#ffbd2e"/><circle cx="56" cy="16" r="5" fill="#27c93f"/>
%[3]s</svg>
`, width, height, body.String())
	return err
}

// wrapped cuts a line where a terminal would.
func wrapped(line string, width int) (parts []string) {
	for utf8.RuneCountInString(line) > width {
		runes := []rune(line)
		parts = append(parts, string(runes[:width]))
		line = string(runes[width:])
	}
	return append(parts, line)
}
