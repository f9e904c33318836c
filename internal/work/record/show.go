package record

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes text of a command's output, piece by piece. What it returns is UTF-8.
type Text struct {
	// Terminal says that the output is meant for a terminal as it is; else Text ends its lines with a carriage return, too.
	Terminal bool
	// Plain shows control characters, which would otherwise do something to the terminal, as ^X or \u009b.
	Plain bool

	pending []byte // the beginning of a character, or a carriage return
}

// Next returns the text of the next piece, except what may be the beginning of a character. The last piece is nil.
func (t *Text) Next(data []byte) string {
	final := data == nil
	data = append(t.pending, data...)
	t.pending = nil
	var b strings.Builder
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case !final && (!utf8.FullRune(data) || t.Plain && len(data) == 1 && r == '\r'):
			t.pending = append([]byte(nil), data...)
			return b.String()
		case !t.Plain && r == '\n' && !t.Terminal:
			b.WriteString("\r\n")
		case !t.Plain, r == '\n', r == '\t', unicode.IsPrint(r):
			b.WriteRune(r) // U+FFFD for what is not UTF-8
		case r == '\r' && len(data) > 1 && data[1] == '\n':
		case r < ' ' || r == 0x7f:
			b.WriteByte('^')
			b.WriteByte(byte(r) ^ 0x40)
		default:
			fmt.Fprintf(&b, "\\u%04x", r)
		}
		data = data[n:]
	}
	return b.String()
}

// Plain returns a text with its control characters made visible.
func Plain(text string) string {
	t := Text{Plain: true}
	return t.Next([]byte(text)) + t.Next(nil)
}

// Title is one line for an event other than Output, without control characters: what was done. It is empty for the end of a command that
// succeeded.
func (e *Event) Title() string {
	failed := ""
	if e.Error != "" {
		failed = ": " + e.Error
	}
	var title string
	switch e.Kind {
	case Exec:
		title = "$ " + e.Line
		if len(e.Args) > 0 {
			title = "$ " + strings.Join(e.Args, " ")
		}
	case End:
		switch {
		case e.Error != "":
			title = "# the command was not seen to end" + failed
		case e.Code != 0:
			title = fmt.Sprintf("# exit code %d", e.Code)
		}
	case File:
		title = "# " + e.Operation + " " + e.Path + failed
	case Network:
		n := e.Network
		title = fmt.Sprintf("# network: %s %s %s %s", n.Verdict, n.Kind, strings.Join(n.Names, " "), n.Destination)
	case Full:
		title = "# the recording has reached its limit: what came later is not in it"
	}
	return strings.ReplaceAll(Plain(title), "\n", " ")
}

// WriteCast writes the rest of a recording as asciicast v2, which asciinema and its web player show. Sequences for terminals that the
// guest's programs have printed are in it as they are.
func WriteCast(w io.Writer, d *Reader) error {
	type castHeader struct {
		Version   int    `json:"version"`
		Width     uint16 `json:"width"`
		Height    uint16 `json:"height"`
		Timestamp int64  `json:"timestamp"`
	}
	head := castHeader{Version: 2, Width: 80, Height: 24, Timestamp: d.Start.Unix()}
	texts := make(map[[2]uint64]*Text)
	put := func(v any) error {
		line, err := Encode(v)
		if err == nil {
			_, err = w.Write(line)
		}
		return err
	}
	begun := false
	for {
		e, err := d.Next()
		if e != nil && e.Kind == Exec && e.Columns > 0 && e.Rows > 0 && !begun {
			head.Width, head.Height = e.Columns, e.Rows
		}
		if !begun && (err == nil || err == io.EOF) {
			begun = true
			if err := put(head); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var text string
		if e.Kind == Output {
			key := [2]uint64{e.ID, uint64(e.Stream)}
			if texts[key] == nil {
				texts[key] = &Text{Terminal: d.Terminal(e.ID)}
			}
			text = texts[key].Next(e.Data())
		} else if text = e.Title(); text != "" {
			text += "\r\n"
		}
		if e.Kind == End {
			for stream := uint64(2); stream > 0; stream-- {
				if t := texts[[2]uint64{e.ID, stream}]; t != nil {
					text = t.Next(nil) + text
					delete(texts, [2]uint64{e.ID, stream})
				}
			}
		}
		if text != "" {
			if err := put([]any{float64(e.At) / 1e6, "o", text}); err != nil {
				return err
			}
		}
	}
}
