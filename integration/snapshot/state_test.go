package snapshot

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"agentvm/internal/storage/objectstore"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/storage/statestore"
	"agentvm/vm"
)

// stateStore is an S3 on loopback.
func stateStore(t testing.TB) *statestore.Store {
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(server.Close)
	keys := map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
	s, err := statestore.Open("s3://bucket/state?endpoint="+server.URL, statestore.Options{Bucket: objectstore.Options{Getenv: func(n string) string { return keys[n] }}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// save writes a VM to a file of the local store and that to s, as client.StateStore does.
func save(t testing.TB, s *statestore.Store, local *snapshot.Store, v *vm.VM, name string) statestore.Pushed {
	t.Helper()
	place, err := local.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	if _, err := v.Snapshot(limited(t), place.Path(), vm.SnapshotOptions{Base: true}); err != nil {
		t.Fatal(err)
	}
	f, err := snapshot.Open(place.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done, err := s.Push(limited(t), name, statestore.Push{File: f, Replace: true})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// load makes a VM of what save has written.
func load(t testing.TB, s *statestore.Store, local *snapshot.Store, name string, c vm.Config) *vm.VM {
	t.Helper()
	m, err := s.Read(limited(t), name)
	if err != nil {
		t.Fatal(err)
	}
	place, err := local.NewFork()
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	if err := s.Pull(limited(t), m, local, place.Path()); err != nil {
		t.Fatal(err)
	}
	v, err := vm.Restore(limited(t), place.Path(), c, vm.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func localSnapshots(t testing.TB, dir string) *snapshot.Store {
	local, err := snapshot.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return local
}

// BenchmarkState is a VM of 256 MB, of which some 60 MB are used, that is written into an object store on this host, and continues in another
// local store without and with its base. An uninterrupted run of BenchmarkStart beside it shows how busy the host is.
func BenchmarkState(b *testing.B) {
	c := config(b)
	c.Image = "busybox"
	start(b, c).Close() // leaves the base
	v := start(b, c)
	output(b, v, "head -c 20000000 /dev/urandom >/tmp/f; sync; echo 3 >/proc/sys/vm/drop_caches")
	s, local := stateStore(b), localSnapshots(b, c.StoreDir)
	first := save(b, s, local, v, "vm")
	var pause, with, without samples
	n, sent := 0, int64(0)
	for b.Loop() {
		n++
		output(b, v, "echo "+strconv.Itoa(n)+" >/tmp/x")
		began := time.Now()
		sent += save(b, s, local, v, "vm").Sent
		pause.since(began)
		began = time.Now()
		r := load(b, s, local, "vm", c)
		output(b, r, "true")
		with.since(began)
		r.Close()
		// The image is not what is measured, so it stays; bases go.
		gone, err := filepath.Glob(filepath.Join(c.StoreDir, "bases", "*"))
		if err != nil {
			b.Fatal(err)
		}
		aside := b.TempDir()
		for _, g := range gone {
			if err := os.Rename(g, filepath.Join(aside, filepath.Base(g))); err != nil {
				b.Fatal(err)
			}
		}
		began = time.Now()
		r = load(b, s, local, "vm", c)
		output(b, r, "true")
		without.since(began)
		r.Close()
		for _, g := range gone {
			if err := os.Rename(filepath.Join(aside, filepath.Base(g)), g); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(first.Bytes)/1e6, "MB")
	b.ReportMetric(float64(first.Sent)/1e6, "first-sent-MB")
	b.ReportMetric(float64(sent)/float64(n)/1e6, "sent-MB/op")
	pause.report(b, "pause")
	with.report(b, "resume")
	without.report(b, "resume-without-base")
}

// BenchmarkStateOfMany is what snapshots of VMs of one image take, each with 10 MB of changes of its own, as a part of one whole snapshot and
// those changes.
func BenchmarkStateOfMany(b *testing.B) {
	c := config(b)
	c.Image = "busybox"
	start(b, c).Close()
	s, local := stateStore(b), localSnapshots(b, c.StoreDir)
	whole := save(b, s, local, start(b, c), "whole").Bytes
	n, sent := 0, int64(0)
	for b.Loop() {
		v := start(b, c)
		output(b, v, "head -c 10000000 /dev/urandom >/tmp/f")
		sent += save(b, s, local, v, "vm"+strconv.Itoa(n)).Sent
		v.Close()
		n++
	}
	b.ReportMetric(float64(whole)/1e6, "whole-MB")
	b.ReportMetric(float64(sent)/float64(n)/1e6, "sent-MB/op")
	b.ReportMetric((float64(whole)+float64(sent))/(float64(whole)+1e7*float64(n)), "ratio")
}
