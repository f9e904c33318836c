package images

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"agentvm/images/imagestest"
)

// BenchmarkAlpineRootDisk lays out the root disk of the genuine release from its compressed archive.
func BenchmarkAlpineRootDisk(b *testing.B) {
	folder, ok := imagestest.Folder(b)
	if !ok {
		b.Skip("no genuine Alpine release here: set " + imagestest.FolderEnv)
	}
	archive, err := os.ReadFile(filepath.Join(folder, "alpine-minirootfs-3.20.3-riscv64.tar.gz"))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(archive)))
	for b.Loop() {
		facts, err := buildRootDisk(b.Context(), nowhere{}, Limits{}, archiveOf(bytes.NewReader(archive)))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(facts.Size), "disk-bytes")
	}
}

// BenchmarkPullAlpine pulls the genuine release into an empty store, with all the waiting for the host's disk.
func BenchmarkPullAlpine(b *testing.B) {
	mirror := genuine(b)
	for b.Loop() {
		if _, err := openStore(b, mirror).Pull(b.Context(), imagestest.Alpine, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkResolve resolves an image that is there.
func BenchmarkResolve(b *testing.B) {
	s := openStore(b, genuine(b))
	if _, err := s.Pull(b.Context(), imagestest.Alpine, nil); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Resolve(b.Context(), imagestest.Alpine); err != nil {
			b.Fatal(err)
		}
	}
}
