package statestore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"agentvm/internal/storage/objectstore"
	"agentvm/internal/storage/snapshot"
)

// serveS3 serves an S3 with a bucket, through wrap, and returns the store's URL.
func serveS3(t testing.TB, wrap func(http.Handler) http.Handler) string {
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	h := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	if wrap != nil {
		h = wrap(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return "s3://bucket/state?endpoint=" + server.URL
}

var testKeys = map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}

func open(t testing.TB, url string, key *Key) *Store {
	s, err := Open(url, Options{Key: key, Logger: slog.New(slog.DiscardHandler), Bucket: objectstore.Options{Getenv: func(n string) string { return testKeys[n] }}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newTestKey(t testing.TB) *Key {
	text, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	k, err := ParseKey([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func localStore(t testing.TB) *snapshot.Store {
	s, err := snapshot.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const testMemory = 8 << 20

// memory makes a memory of which a part has contents.
func memory(seed byte, part int) []byte {
	m := make([]byte, testMemory)
	rand.NewChaCha8([32]byte{seed}).Read(m[1<<20 : 1<<20+part])
	return m
}

func write(t testing.TB, path string, m []byte, base *snapshot.File, disk []byte) {
	t.Helper()
	c := snapshot.Content{Meta: snapshot.Meta{LinearMemory: int64(len(m)), Image: "busybox", RootDisk: "abc"}, Base: base}
	if base == nil {
		c.Memory = []snapshot.Extent{{Length: int64(len(m)), Source: bytes.NewReader(m)}}
	} else {
		below := contents(t, base)
		for at := 0; at < len(m); at += snapshot.PageSize {
			same := bytes.Equal(m[at:at+snapshot.PageSize], below[at:at+snapshot.PageSize])
			c.Memory = append(c.Memory, snapshot.Extent{At: int64(at), Length: snapshot.PageSize, Source: bytes.NewReader(m), Offset: int64(at), InBase: same})
		}
	}
	if disk != nil {
		c.Disk, c.DiskSize = bytes.NewReader(disk), int64(len(disk))
	}
	if err := snapshot.Write(t.Context(), path, c); err != nil {
		t.Fatal(err)
	}
}

// contents reads a snapshot's memory.
func contents(t testing.TB, f *snapshot.File) []byte {
	t.Helper()
	m := make([]byte, f.Meta().LinearMemory)
	for _, r := range f.Memory() {
		if _, err := r.File.ReadAt(m[r.At:r.At+r.Length], r.Offset); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func openFile(t testing.TB, path string) *snapshot.File {
	t.Helper()
	f, err := snapshot.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func path(t testing.TB, s *snapshot.Store, name string) string {
	p, err := s.Path(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// layered makes a snapshot with a disk that is layered on a base.
func layered(t testing.TB, local *snapshot.Store, name string, base *snapshot.File, changed byte) (*snapshot.File, []byte) {
	m := contents(t, base)
	rand.NewChaCha8([32]byte{changed}).Read(m[5<<20 : 6<<20])
	m[2<<20]++
	disk := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{changed, 1}).Read(disk[1<<20 : 1<<20+300<<10])
	write(t, path(t, local, name), m, base, disk)
	return openFile(t, path(t, local, name)), m
}

func newBase(t testing.TB, local *snapshot.Store) *snapshot.File {
	p := filepath.Join(filepath.Dir(filepath.Dir(path(t, local, "x"))), "bases", "key.snap")
	write(t, p, memory(1, 3<<20), nil, nil)
	return openFile(t, p)
}

func TestRoundTrip(t *testing.T) {
	for name, url := range map[string]string{"s3": serveS3(t, nil), "file": "file://" + filepath.ToSlash(t.TempDir()) + "/state"} {
		for _, key := range []*Key{nil, newTestKey(t)} {
			t.Run(name, func(t *testing.T) {
				s := open(t, url, key)
				prefix := "plain"
				if key != nil {
					prefix = "keyed"
				}
				here, there := localStore(t), localStore(t)
				base := newBase(t, here)
				f, m := layered(t, here, "one", base, 2)
				archive := bytes.Repeat([]byte("an archive "), 200000)
				image := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
				if key != nil { // the other subtest's index is not of this key, and of no use
					if done, err := s.Push(t.Context(), prefix, Push{File: base}); err != nil || done.Existed {
						t.Fatal(done, err)
					}
				}
				first, err := s.Push(t.Context(), prefix, Push{File: f, Image: image, Replace: true})
				if err != nil {
					t.Fatal(err)
				}
				again, err := s.Push(t.Context(), prefix, Push{File: f, Image: image})
				if err != nil || !again.Existed || again.ID != first.ID || again.Sent != 0 {
					t.Errorf("pushed again: %+v, %v", again, err)
				}
				read, err := s.Read(t.Context(), prefix)
				if err != nil || read.ID() != first.ID || read.Info().Image != "busybox" {
					t.Fatal(read, err)
				}
				to := path(t, there, "copy")
				if err := s.Pull(t.Context(), read, there, to); err != nil {
					t.Fatal(err)
				}
				got := openFile(t, to)
				if err := got.Verify(t.Context()); err != nil {
					t.Error(err)
				}
				if !bytes.Equal(contents(t, got), m) {
					t.Error("the memory differs")
				}
				if got.Base() == nil || got.Base().ID() != base.ID() {
					t.Error("it is not layered on the base")
				}
				if got.Own() != (key != nil) {
					t.Errorf("own: %v", got.Own())
				}
				d, err := got.OpenDisk()
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				before, err := f.OpenDisk()
				if err != nil {
					t.Fatal(err)
				}
				defer before.Close()
				a, b := make([]byte, d.Size()), make([]byte, before.Size())
				if _, err := d.ReadAt(a, 0); err != nil {
					t.Fatal(err)
				}
				if _, err := before.ReadAt(b, 0); err != nil || !bytes.Equal(a, b) {
					t.Error("the disk differs", err)
				}
				var out bytes.Buffer
				if err := s.PullImage(t.Context(), read, &out); err != nil || !bytes.Equal(out.Bytes(), archive) {
					t.Errorf("the image has %d bytes, %v", out.Len(), err)
				}
				if err := s.Pull(t.Context(), read, there, to); !errors.Is(err, fs.ErrExist) {
					t.Errorf("pulled again: %v", err)
				}
				list, err := s.List(t.Context())
				if err != nil || len(list) != 1 && key == nil || len(list) == 0 {
					t.Errorf("%v, %v", list, err)
				}
				if err := s.Remove(t.Context(), prefix); err != nil {
					t.Error(err)
				}
				if err := s.Remove(t.Context(), prefix); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("removed again: %v", err)
				}
			})
		}
	}
}

// A second snapshot of a VM writes what has changed, and the first one of another VM no base.
func TestIncrements(t *testing.T) {
	s := open(t, serveS3(t, nil), nil)
	here := localStore(t)
	base := newBase(t, here)
	f, m := layered(t, here, "one", base, 2)
	first, err := s.Push(t.Context(), "vm", Push{File: f})
	if err != nil || first.Added < 3<<20 {
		t.Fatalf("%+v, %v", first, err)
	}
	m[7<<20]++ // a page more
	write(t, path(t, here, "two"), m, base, nil)
	second, err := s.Push(t.Context(), "vm", Push{File: openFile(t, path(t, here, "two")), Replace: true})
	if err != nil || second.Added > snapshot.PieceSize {
		t.Errorf("a page was changed: %+v, %v", second, err)
	}
	if _, err := s.Push(t.Context(), "vm", Push{File: f}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("replaced without being asked: %v", err)
	}
	other, _ := layered(t, here, "other", base, 3)
	third, err := s.Push(t.Context(), "other", Push{File: other})
	if err != nil || third.Added > 2<<20 || third.Added < 1<<20 {
		t.Errorf("another VM of the base: %+v, %v", third, err)
	}
}
