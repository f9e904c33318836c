package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/internal/api/agenttool"
	"agentvm/internal/storage/journal"
	"agentvm/vm"
)

// fakeJob is a job that has written chunks of one byte or more, and has ended or runs.
type fakeJob struct {
	vm.Job
	data  []byte // of both streams
	chunk int    // bytes of a chunk; the streams take turns
	lost  int    // bytes of the beginning that are no longer kept
	ended bool
}

func (f *fakeJob) stream(at int) journal.Stream {
	if at/f.chunk%2 == 0 {
		return journal.Stdout
	}
	return journal.Stderr
}

func (f *fakeJob) Info(context.Context) (vm.JobInfo, error) {
	i := vm.JobInfo{ID: "job", OutputBytes: uint64(len(f.data)), Started: time.Now()}
	if f.ended {
		i.Ended = time.Now()
	}
	return i, nil
}

func (f *fakeJob) Wait(ctx context.Context) (vm.JobEnd, error) {
	if !f.ended {
		<-ctx.Done()
		return vm.JobEnd{}, ctx.Err()
	}
	return vm.JobEnd{Code: 3}, nil
}

func (f *fakeJob) Output(ctx context.Context, from vm.Cursor, limit int) (o vm.JobOutput, err error) {
	at := int(from)
	if at < f.lost {
		o.Lost = uint64(f.lost - at)
		at = f.lost
	}
	for at < len(f.data) && limit > 0 {
		n := min(f.chunk-at%f.chunk, len(f.data)-at, limit)
		o.Chunks = append(o.Chunks, journal.Chunk{Stream: f.stream(at), Data: f.data[at : at+n]})
		at, limit = at+n, limit-n
	}
	o.Next = vm.Cursor(at)
	if at == len(f.data) && f.ended {
		o.End = &vm.JobEnd{Code: 3}
	} else if len(o.Chunks) == 0 {
		<-ctx.Done()
		return vm.JobOutput{}, ctx.Err()
	}
	return o, nil
}

// FuzzPiece: whatever a program writes, a result is no longer than was asked for, what it leaves out is just what it names, and all is had by reading on.
func FuzzPiece(f *testing.F) {
	f.Add([]byte("plain text\n"), 100, 7, 0, true)
	f.Add(bytes.Repeat([]byte("aß€😀"), 100), 200, 3, 0, false)
	f.Add(bytes.Repeat([]byte{0, 0xff, 0xc3, '"'}, 100), 64, 1, 10, true)
	f.Add(bytes.Repeat([]byte{0xf0, 0x9f}, 40), 64, 1000, 79, false)
	f.Fuzz(func(t *testing.T, data []byte, limit, chunk, lost int, ended bool) {
		if len(data) > 1<<14 || chunk <= 0 || lost < 0 || lost > 0 && lost >= len(data) { // a journal keeps the end
			return
		}
		limit, err := budget(limit)
		if err != nil {
			return
		}
		j := &fakeJob{data: data, chunk: chunk, lost: lost, ended: ended}
		s := &Server{}
		req := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}}
		out, err := s.await(context.Background(), req, j, time.Millisecond, limit)
		if err != nil {
			t.Fatal(err)
		}
		check := func(out *processOutput) {
			b, err := json.Marshal(struct{ A, B string }{out.Stdout, out.Stderr})
			if err != nil || bytes.Contains(b, []byte(`\u003`)) || bytes.Contains(b, []byte(`\u202`)) || bytes.Contains(b, []byte(`\u0026`)) {
				return // Go writes some characters longer than JSON has to
			}
			if len(b) > limit+200 {
				t.Fatalf("%d bytes for a limit of %d", len(b), limit)
			}
			if !utf8.ValidString(out.Stdout) || !utf8.ValidString(out.Stderr) || out.Running == ended {
				t.Fatalf("%+v", out)
			}
		}
		check(out)
		if g := out.Omitted; g != nil && (g.From >= g.To || g.To > uint64(len(data))) {
			t.Fatalf("left out %+v of %d", *g, len(data))
		}
		if out.Next > uint64(len(data)) || out.Next+utf8.UTFMax < uint64(len(data)) {
			t.Fatalf("next %d of %d", out.Next, len(data))
		}
		for from := uint64(0); from < uint64(len(data)); {
			stopped, stop := context.WithCancel(context.Background())
			stop()
			p, err := agenttool.Read(context.Background(), stopped, j, vm.Cursor(from), vm.Cursor(len(data)), limit)
			if err != nil {
				t.Fatal(err)
			}
			p.HoldBack()
			got := []byte{}
			for _, c := range p.Chunks {
				got = append(got, c.Data...)
			}
			if begin := max(from, uint64(lost)); uint64(p.Next) <= from || !bytes.Equal(got, data[begin:p.Next]) {
				if !ended && int(p.Next) == int(from) && !utf8.FullRune(data[from:]) {
					break // the program has not written the rest of a character yet
				}
				t.Fatalf("read %q from %d to %d of %q", got, from, p.Next, data)
			}
			from = uint64(p.Next)
		}
	})
}
