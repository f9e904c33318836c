package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"agentvm/egress"
	"agentvm/internal/work/record"
)

// read returns the events of a recording.
func read(t *testing.T, text []byte) (list []*record.Event) {
	t.Helper()
	d, err := record.NewReader(bytes.NewReader(text))
	for err == nil {
		var e *record.Event
		if e, err = d.Next(); e != nil {
			list = append(list, e)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return list
}

func TestThereAndBack(t *testing.T) {
	var b bytes.Buffer
	r := record.NewRecorder(&b, 0)
	c := r.Start(record.Event{Args: []string{"a", "b\x1b[2J"}, Columns: 100, Rows: 30})
	var passed bytes.Buffer
	out := c.Tee(1, &passed)
	_, _ = io.WriteString(out, "x\u009b\x7f")
	_, _ = out.Write([]byte{0xff, 0})
	r.File("write", "/f", nil)
	r.Network(nil)(egress.Event{Verdict: "deny", Names: []string{"example.com"}})
	c.End(3, 0, nil)
	if r.Err() != nil || passed.String() != "x\u009b\x7f\xff\x00" {
		t.Errorf("%v, passed on %q", r.Err(), passed.String())
	}
	for _, bad := range []string{"\x1b", "\x7f", "\u009b"} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the recording has %q", bad)
		}
	}
	list := read(t, b.Bytes())
	for _, e := range list {
		e.At = 0
	}
	want := []*record.Event{
		{Kind: "exec", ID: 1, Args: []string{"a", "b\x1b[2J"}, Columns: 100, Rows: 30},
		{Kind: "output", ID: 1, Stream: 1, Text: "x\u009b\x7f"},
		{Kind: "output", ID: 1, Stream: 1, Base64: []byte{0xff, 0}},
		{Kind: "file", Operation: "write", Path: "/f"},
		{Kind: "network", Network: &egress.Event{Verdict: "deny", Names: []string{"example.com"}}},
		{Kind: "end", ID: 1, Code: 3},
	}
	if diff := cmp.Diff(fmt.Sprint(titles(want)), fmt.Sprint(titles(list))); diff != "" {
		t.Error(diff)
	}
}

func titles(list []*record.Event) (s []string) {
	for _, e := range list {
		s = append(s, fmt.Sprintf("%s %d %d %q %q %d", e.Kind, e.ID, e.Stream, e.Data(), e.Title(), e.Columns))
	}
	return s
}

// TestSecretsAreReplaced: however the guest cuts its output, and where one secret begins with another.
func TestSecretsAreReplaced(t *testing.T) {
	const text = "1 sk-live-1 2 sk-live-12 sk-sk-live-1 sk-liv"
	for size := 1; size <= len(text); size++ {
		var b bytes.Buffer
		r := record.NewRecorder(&b, 0)
		r.Hide("sk-live-1", "<one>")
		r.Hide("sk-live-12", "<two>")
		c := r.Start(record.Event{Args: []string{"curl", "k=sk-live-1"}})
		out := c.Tee(2, io.Discard)
		for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
			_, _ = io.WriteString(out, rest[:min(size, len(rest))])
		}
		r.File("write", "/sk-live-12", errors.New("sk-live-1"))
		r.Network(nil)(egress.Event{Names: []string{"sk-live-1.example"}, Message: "sk-live-1"})
		c.End(0, 0, nil)
		if strings.Contains(b.String(), "sk-live-1") {
			t.Fatalf("in pieces of %d: a secret is in %s", size, b.String())
		}
		var got strings.Builder
		for _, e := range read(t, b.Bytes()) {
			got.Write(e.Data())
		}
		if want := "1 <one> 2 <two> sk-<one> sk-liv"; got.String() != want {
			t.Errorf("in pieces of %d: %q, want %q", size, got.String(), want)
		}
	}
}

func TestBounds(t *testing.T) {
	var b bytes.Buffer
	r := record.NewRecorder(&b, 2<<20)
	c := r.Start(record.Event{Args: []string{strings.Repeat("\x01", 1<<20)}, Dir: strings.Repeat("\x01", 1<<20)})
	out := c.Tee(1, io.Discard)
	for range 100 {
		_, _ = out.Write(bytes.Repeat([]byte{1}, 100_000))
	}
	c.End(0, 0, nil)
	list := read(t, b.Bytes())
	if last := list[len(list)-1]; b.Len() > 2<<20 || last.Kind != record.Full || !list[0].Cut {
		t.Errorf("%d bytes, the last event %q", b.Len(), last.Kind)
	}
	broken := record.NewRecorder(failing{}, 0)
	_ = broken.Start(record.Event{Line: "x"})
	if broken.Err() == nil {
		t.Error("no error of writing")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("no space") }

const first = `{"agentvm":"recording","version":1,"start":"2026-11-24T00:00:00Z"}` + "\n"

func TestHostileRecordings(t *testing.T) {
	const begun = first + `{"at":5,"event":"exec","id":1,"line":"x"}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "no recording"},
		{"\n", "no recording"},
		{"{}\n", "no recording"},
		{`{"agentvm":"recording","version":2,"start":"2026-11-24T00:00:00Z"}` + "\n", "version 2"},
		{first + strings.Repeat("x", 2<<20), "line 2 of the recording: it is longer than 1024 KiB"},
		{first + "{\n", "line 2 of the recording: bad JSON"},
		{first + strings.Repeat("[", 100_000) + "\n", "bad JSON"},
		{first + "\xff\n", "not UTF-8"},
		{first + `{"at":1,"event":"full"} {}` + "\n", "behind the JSON object"},
		{first + `{"at":1,"event":"full"}`, "breaks off"},
		{first + `{"at":1,"event":"full"}` + "\n" + `{"at":1,"event":"full"}` + "\n", "line 3"},
		{first + `{"at":-1,"event":"full"}` + "\n", "negative"},
		{first + `{"at":1e300,"event":"full"}` + "\n", "bad JSON"},
		{first + `{"at":9223372036854775807,"event":"full"}` + "\n", "366 days"},
		{begun + `{"at":4,"event":"end","id":1}` + "\n", "line 3 of the recording: its time is before"},
		{begun + `{"at":5,"event":"exec","id":1,"line":"y"}` + "\n", "number 1, after 1"},
		{begun + `{"at":5,"event":"output","id":2,"stream":1,"text":"x"}` + "\n", "does not run"},
		{begun + `{"at":5,"event":"output","id":1,"stream":3,"text":"x"}` + "\n", "1 or 2"},
		{begun + `{"at":5,"event":"output","id":1,"stream":1,"text":"x","base64":"eA=="}` + "\n", "either text or base64"},
		{begun + `{"at":5,"event":"end","id":7}` + "\n", "does not run"},
		{begun + `{"at":5,"event":"network"}` + "\n", "missing"},
		{begun + `{"at":5,"event":"file"}` + "\n", "operation and a path"},
		{begun + `{"at":5,"event":"\u001b[2J"}` + "\n", `no event "\x1b[2J"`},
		{begun + `{"at":5,"event":"end","id":1,"more":1}` + "\n", "unknown field"},
	} {
		var err error
		d, err := record.NewReader(strings.NewReader(c.text))
		for err == nil {
			_, err = d.Next()
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.100q: %v, want %q", c.text, err, c.want)
		}
	}
}

func TestPlain(t *testing.T) {
	text := record.Text{Plain: true}
	var got string
	for _, b := range []byte("a\r\n\x1b]0;t\x07\té\xc2\x9b\u202e\xff\r") {
		got += text.Next([]byte{b})
	}
	got += text.Next(nil)
	if want := "a\n^[]0;t^G\té\\u009b\\u202e\ufffd^M"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCast(t *testing.T) {
	d, err := record.NewReader(strings.NewReader(first + `{"at":1500000,"event":"exec","id":1,"line":"a\u001b[2J","columns":100,"rows":30}
{"at":1500000,"event":"output","id":1,"stream":1,"base64":"w0EKwg=="}
{"at":1600000,"event":"output","id":1,"stream":1,"base64":"qQ=="}
{"at":1700000,"event":"exec","id":2,"line":"b"}
{"at":1800000,"event":"output","id":2,"stream":2,"text":"x\n"}
{"at":1900000,"event":"end","id":2,"code":1}
`))
	var b strings.Builder
	if err == nil {
		err = record.WriteCast(&b, d)
	}
	const want = `{"version":2,"width":100,"height":30,"timestamp":1795478400}
[1.5,"o","$ a^[[2J\r\n"]
[1.5,"o","�A\n"]
[1.6,"o","©"]
[1.7,"o","$ b\r\n"]
[1.8,"o","x\r\n"]
[1.9,"o","# exit code 1\r\n"]
`
	if diff := cmp.Diff(want, b.String()); err != nil || diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
}

// FuzzReader: whatever a recording has, reading it ends, and what is shown of it has nothing that a terminal obeys.
func FuzzReader(f *testing.F) {
	f.Add([]byte(first + `{"at":5,"event":"exec","id":1,"args":["x"]}` + "\n" + `{"at":5,"event":"output","id":1,"stream":1,"base64":"wps="}` + "\n"))
	f.Add([]byte(first + `{"at":5,"event":"network","network":{"time":"2026-11-24T00:00:00Z","kind":"tcp","verdict":"deny","destination":"10.0.0.1:80"}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := record.NewReader(bytes.NewReader(text))
		plain := record.Text{Plain: true}
		at := int64(0)
		for err == nil {
			var e *record.Event
			if e, err = d.Next(); err != nil {
				break
			}
			if e.At < at {
				t.Fatal("time runs backwards")
			}
			at = e.At
			line, encodeErr := record.Encode(e)
			if encodeErr != nil {
				t.Fatal(encodeErr)
			}
			shown := strings.TrimSuffix(string(line), "\n") + e.Title() + strings.NewReplacer("\n", "", "\t", "").Replace(plain.Next(e.Data()))
			if i := strings.IndexFunc(shown, func(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f && r <= 0x9f }); i >= 0 {
				t.Fatalf("%q", shown[i:])
			}
		}
		if d, err := record.NewReader(bytes.NewReader(text)); err == nil {
			_ = record.WriteCast(io.Discard, d)
		}
	})
}
