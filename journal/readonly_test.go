package journal

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestOpenReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	l, err := Create(path, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append(Stdout, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if l, err = OpenReadOnly(path); err != nil {
		t.Fatal(err)
	}
	if b, err := l.Read(context.Background(), 0, 100); err != nil || len(b.Chunks) != 1 || string(b.Chunks[0].Data) != "hello" {
		t.Errorf("%+v, %v", b, err)
	}
	if err := l.Append(Stdout, []byte("more")); err == nil {
		t.Error("appended")
	}
	if err := l.Finish([]byte("end")); err == nil {
		t.Error("finished")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed: %v", err)
	}
}
