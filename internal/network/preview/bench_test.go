package preview

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkCheck is the cost of a token: the signature, and asking SQLite whether something has changed.
func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{1, MaxPerVM} {
		b.Run(fmt.Sprintf("previews=%d", n), func(b *testing.B) {
			s := openStore(b, filepath.Join(b.TempDir(), "previews.db"), Options{})
			var p Preview
			for range n {
				p = create(b, s, "dev", 80, time.Hour)
			}
			for b.Loop() {
				if _, err := s.Check(b.Context(), p.Token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("forged", func(b *testing.B) {
		s := openStore(b, filepath.Join(b.TempDir(), "previews.db"), Options{})
		p := create(b, s, "dev", 80, time.Hour)
		forged := p.Token[:30] + "0000" + p.Token[34:]
		for b.Loop() {
			if _, err := s.Check(b.Context(), forged); err == nil {
				b.Fatal("accepted")
			}
		}
	})
	b.Run("after a change", func(b *testing.B) {
		path := filepath.Join(b.TempDir(), "previews.db")
		s, other := openStore(b, path, Options{}), openStore(b, path, Options{})
		p := create(b, s, "dev", 80, time.Hour)
		for range MaxPerVM - 1 {
			create(b, s, "dev", 80, time.Hour)
		}
		for b.Loop() {
			b.StopTimer()
			create(b, other, "another", 80, time.Second)
			if _, err := other.RevokeAll(b.Context(), "another"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if _, err := s.Check(b.Context(), p.Token); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCheckParallel is what 200 visitors at once wait for.
func BenchmarkCheckParallel(b *testing.B) {
	s := openStore(b, filepath.Join(b.TempDir(), "previews.db"), Options{})
	p := create(b, s, "dev", 80, time.Hour)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Check(b.Context(), p.Token); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkLatency and BenchmarkThroughput compare a preview with a connection to the same program without one.
func BenchmarkLatency(b *testing.B) {
	clients, urls := benchWorld(b)
	for _, way := range []string{"direct", "name", "path"} {
		b.Run("by="+way, func(b *testing.B) {
			for b.Loop() {
				download(b, clients[way], urls[way]+"small")
			}
		})
	}
}

func BenchmarkThroughput(b *testing.B) {
	clients, urls := benchWorld(b)
	for _, way := range []string{"direct", "name"} {
		b.Run("by="+way, func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				download(b, clients[way], urls[way]+"large")
			}
		})
	}
}

const benchBytes = 64 << 20

// benchWorld returns, for each way to a program, a client and the URL of the program.
func benchWorld(b *testing.B) (map[string]*http.Client, map[string]string) {
	b.Helper()
	w := newWorld(b, nil)
	piece := make([]byte, 256<<10)
	w.vms.serve(b, "dev", 3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := 100
		if r.URL.Path == "/large" {
			size = benchBytes
		}
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for ; size > 0; size -= len(piece) {
			w.Write(piece[:min(size, len(piece))])
		}
	}))
	p := create(b, w.store, "dev", 3000, 0)
	_, digits, _ := strings.Cut(w.vms.addresses["dev:3000"], ":")
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		b.Fatal(err)
	}
	clients := map[string]*http.Client{"direct": newClient(b, uint16(port)), "name": w.client, "path": w.client}
	return clients, map[string]string{"direct": "http://127.0.0.1:" + digits + "/", "name": p.URL(w.port), "path": p.PathURL(w.port)}
}

func download(b *testing.B, client *http.Client, url string) {
	b.Helper()
	res, err := client.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
		b.Fatal(res.Status, err)
	}
}
