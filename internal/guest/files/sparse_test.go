//go:build linux

package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"agentvm/internal/guest/guestrpc"
)

// sparseContent is 8 MiB with a few bytes here and there.
func sparseContent() []byte {
	b := make([]byte, 8<<20)
	b[1<<20] = 1
	copy(b[5<<20-3:], strings.Repeat("data", 1000))
	return b
}

// wantSparse checks a file's content, and that it takes little space on the disk.
func wantSparse(t *testing.T, path string, want []byte) {
	t.Helper()
	var st syscall.Stat_t
	b, err := os.ReadFile(path)
	if err = errors.Join(err, syscall.Stat(path, &st)); err != nil || !bytes.Equal(b, want) {
		t.Fatalf("%s: %d bytes that are not those of the original, %v", path, len(b), err)
	}
	if taken := st.Blocks * 512; taken > 1<<20 {
		t.Errorf("%s takes %d bytes of the disk", path, taken)
	}
}

func TestZerosBecomeHoles(t *testing.T) {
	c, root := connected(t)
	want := sparseContent()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: "f", Size: int64(len(want)), Mode: 0o600})
	if err == nil {
		_, err = w.Write(want)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := c.Unpack(t.Context(), "/", &b, guestrpc.UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	wantSparse(t, root+"/f", want)
	if err := c.WriteFile(t.Context(), "/g", bytes.NewReader(want), 0o600); err != nil {
		t.Fatal(err)
	}
	wantSparse(t, root+"/g", want)
}

// TestArchiveThatBreaksOff: existing files and files that were complete stay, and nothing is left of the file in which it broke off.
func TestArchiveThatBreaksOff(t *testing.T) {
	c, root := connected(t)
	write(t, root+"/old", "old", 0o600)
	for _, name := range []string{"old", "new"} {
		whole := archived(t, tar.Header{Name: "whole"}, tar.Header{Name: name}).Bytes()
		half := whole[:bytes.Index(whole, []byte("content of "+name))+5]
		if err := c.Unpack(t.Context(), "/", bytes.NewReader(half), guestrpc.UnpackOptions{}); err == nil {
			t.Error("half of an archive is taken for a whole one")
		}
		if got := strings.Join(names(t, root), " "); got != "old whole" {
			t.Errorf("there are %q", got)
		}
		if b, err := os.ReadFile(root + "/old"); err != nil || string(b) != "old" {
			t.Errorf("the old file has %q, %v", b, err)
		}
		if b, err := os.ReadFile(root + "/whole"); err != nil || string(b) != "content of whole" {
			t.Errorf("the whole file has %q, %v", b, err)
		}
	}
}
