// Package record writes and reads recordings of what was done with a VM: commands with their output and timing, changes of files by the API,
// and what the network policy decided. A recording is text, one JSON object a line.
//
// A Recorder may be used from several goroutines, and what is written is in the order of its times. A Reader takes nothing of a recording
// on trust. The package runs nothing and opens no files.
package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"agentvm/egress"
)

// Bounds of a recording. The longest line is that of a command whose arguments are all control characters, of which JSON makes six bytes each.
const (
	maxLine   = 1 << 20              // bytes, in what is read and what is written
	maxOutput = 32 << 10             // bytes of output in a line that is written
	maxText   = 128 << 10            // bytes of a command's arguments, or of its line
	maxName   = 4 << 10              // bytes of a path, a user or an error
	maxTime   = 366 * 24 * time.Hour // the latest event, after the start
)

// version is that of the format. Another one is refused.
const version = 1

// header is the first line.
type header struct {
	Format  string    `json:"agentvm"` // "recording"
	Version int       `json:"version"`
	Start   time.Time `json:"start"`
}

// The kinds of events.
const (
	Exec    = "exec"    // a command is started: ID, Args or Line, Dir, User, and with a terminal its Columns and Rows
	Output  = "output"  // of the command ID: Stream, and Text or Base64
	End     = "end"     // of the command ID: Code and Signal, or Error
	File    = "file"    // Operation at Path, and Error when it failed
	Network = "network" // Event
	Full    = "full"    // what came later was left out, because the recording had reached its limit
)

// Event is a line of a recording after the first.
type Event struct {
	At   int64  `json:"at"` // microseconds since the start
	Kind string `json:"event"`

	ID      uint64   `json:"id,omitempty"`
	Args    []string `json:"args,omitempty"`
	Line    string   `json:"line,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	User    string   `json:"user,omitempty"`
	Columns uint16   `json:"columns,omitempty"`
	Rows    uint16   `json:"rows,omitempty"`
	Cut     bool     `json:"cut,omitempty"` // Args or Line were longer

	Stream int    `json:"stream,omitempty"` // 1: standard output, or the terminal; 2: standard error
	Text   string `json:"text,omitempty"`
	Base64 []byte `json:"base64,omitempty"` // what is not UTF-8

	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Error  string `json:"error,omitempty"`

	Operation string `json:"operation,omitempty"`
	Path      string `json:"path,omitempty"`

	Network *egress.Event `json:"network,omitempty"`
}

// Data is what an Output event has.
func (e *Event) Data() []byte {
	if e.Text != "" {
		return []byte(e.Text)
	}
	return e.Base64
}

// Encode returns v as a line of JSON, in which no character is one that a terminal obeys.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	// Of those, JSON leaves only DEL and U+0080 to U+009F as they are, and they can be in strings alone.
	line := make([]byte, 0, b.Len())
	for rest := b.Bytes(); len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r >= 0x7f && r <= 0x9f {
			line = fmt.Appendf(line, "\\u%04x", r)
		} else {
			line = append(line, rest[:n]...)
		}
		rest = rest[n:]
	}
	return line, nil
}

// Reader reads a recording.
type Reader struct {
	Start time.Time // when it was begun

	lines *bufio.Reader
	line  int
	at    int64
	open  map[uint64]bool // commands; true: it has a terminal
	last  uint64          // the highest ID
	full  bool
}

// NewReader reads the first line.
func NewReader(r io.Reader) (*Reader, error) {
	d := &Reader{lines: bufio.NewReaderSize(r, maxLine), open: make(map[uint64]bool)}
	var h header
	if err := d.decode(&h); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, fmt.Errorf("this is no recording of agentvm: %w", err)
	}
	switch {
	case h.Format != "recording":
		return nil, errors.New("this is no recording of agentvm: its first line does not say so")
	case h.Version != version:
		return nil, fmt.Errorf("the recording has version %d, and this agentvm reads version %d", h.Version, version)
	}
	d.Start = h.Start
	return d, nil
}

// Next returns the next event, or io.EOF. Other errors have the number of the line.
func (d *Reader) Next() (*Event, error) {
	e := &Event{}
	err := d.decode(e)
	if err == nil {
		err = d.check(e)
	}
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("line %d of the recording: %w", d.line, err)
	}
	return e, nil
}

func (d *Reader) decode(v any) error {
	d.line++
	line, err := d.lines.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("it is longer than %d KiB", maxLine>>10)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return fmt.Errorf("the recording breaks off there: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return err
	}
	if !utf8.Valid(line) {
		return errors.New("it is not UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); errors.Is(err, io.EOF) {
		return errors.New("it is empty")
	} else if err != nil {
		return fmt.Errorf("bad JSON: %w", err)
	}
	if decoder.More() {
		return errors.New("there is something behind the JSON object")
	}
	return nil
}

func (d *Reader) check(e *Event) error {
	switch {
	case d.full:
		return errors.New("there is an event after the one that says that the recording is full")
	case e.At < 0:
		return fmt.Errorf("its time is negative: %d", e.At)
	case e.At < d.at:
		return fmt.Errorf("its time is before that of the event before it: %d, %d", e.At, d.at)
	case e.At > maxTime.Microseconds():
		return fmt.Errorf("its time is more than %d days after the start", maxTime/(24*time.Hour))
	}
	d.at = e.At
	_, open := d.open[e.ID]
	switch e.Kind {
	case Exec:
		if e.ID <= d.last {
			return fmt.Errorf("a command has the number %d, after %d", e.ID, d.last)
		}
		if (e.Line == "") == (len(e.Args) == 0) {
			return errors.New("a command has either a line or arguments")
		}
		d.last, d.open[e.ID] = e.ID, e.Columns > 0
	case Output:
		if !open {
			return fmt.Errorf("output of command %d, which does not run", e.ID)
		}
		if e.Stream != 1 && e.Stream != 2 || (e.Text == "") == (len(e.Base64) == 0) {
			return errors.New("output has a stream, 1 or 2, and either text or base64")
		}
	case End:
		if !open {
			return fmt.Errorf("the end of command %d, which does not run", e.ID)
		}
		delete(d.open, e.ID)
	case File:
		if e.Operation == "" || e.Path == "" {
			return errors.New("a change of a file has an operation and a path")
		}
	case Network:
		if e.Network == nil {
			return errors.New("the network's event is missing")
		}
	case Full:
		d.full = true
	default:
		return fmt.Errorf("there is no event %.40q", e.Kind)
	}
	return nil
}

// Terminal says whether the command of an Output event that Next has just returned has a terminal.
func (d *Reader) Terminal(id uint64) bool { return d.open[id] }
