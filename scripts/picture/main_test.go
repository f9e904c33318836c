package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestPictureIsOfTheRecording holds that the committed picture is what draw makes of the committed recording, and that this is of the script.
func TestPictureIsOfTheRecording(t *testing.T) {
	const pictures = "../../docs/pictures/"
	cast, err := os.ReadFile(pictures + "session.cast")
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(pictures + "session.svg")
	if err != nil {
		t.Fatal(err)
	}
	var drawn bytes.Buffer
	if err := draw(&drawn, cast); err != nil {
		t.Fatal(err)
	}
	if drawn.String() != string(committed) {
		t.Error("docs/pictures/session.svg is not what its recording shows: go run ./scripts/picture draw docs/pictures/session.cast docs/pictures/session.svg")
	}
	script, err := os.ReadFile(pictures + "session.sh")
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Join(texts(t, drawn.Bytes()), "\n")
	for line := range strings.Lines(string(script)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.Contains(shown, "$ "+line) {
			t.Errorf("docs/pictures/session.svg does not show %s: record it again", line)
		}
	}
}

// texts lists the lines that an SVG shows, and fails where it is not XML.
func texts(t *testing.T, svg []byte) (list []string) {
	t.Helper()
	inText := false
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if inText = token.Name.Local == "text"; inText {
				list = append(list, "")
			}
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				list[len(list)-1] += string(token)
			}
		}
	}
}

// TestRecordAndDraw runs real commands: one that prints on both streams and fails, and one that prints what is special in SVG and to a terminal.
func TestRecordAndDraw(t *testing.T) {
	var cast, svg bytes.Buffer
	if err := record(&cast, []byte("# not shown\n\necho out; echo err >&2; exit 3\nprintf '<a> & \\033[31mred\\033[0m\\n%0100d\\n' 7\n")); err != nil {
		t.Fatal(err)
	}
	if err := draw(&svg, cast.Bytes()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"$ echo out; echo err >&2; exit 3", "out", "err", `$ printf '<a> & \033[31mred\033[0m\n%0100d\n' 7`, "<a> & red",
		strings.Repeat("0", columns), "00000007",
	}
	if got := texts(t, svg.Bytes()); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDrawRefuses(t *testing.T) {
	for _, cast := range []string{"", "text\n", `{"version":1,"width":80}`, `{"version":2,"width":0}`, "{\"version\":2,\"width\":80}\nnot JSON\n"} {
		if err := draw(io.Discard, []byte(cast)); err == nil {
			t.Errorf("%q: no error", cast)
		}
	}
}
