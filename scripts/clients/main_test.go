package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGenerated: the clients' types are those of the server.
func TestGenerated(t *testing.T) {
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", "..", name)); err != nil || string(got) != want {
			t.Errorf("%s is not what the server has (%v): go run ./scripts/clients", name, err)
		}
	}
}
