package snapshot_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"agentvm/internal/storage/snapshot"
)

func Example() {
	dir, err := os.MkdirTemp("", "snapshots")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := snapshot.OpenStore(dir)
	if err != nil {
		log.Fatal(err)
	}
	memory := make([]byte, 32<<20) // mostly zeros, which take no room
	copy(memory[20<<20:], "what a machine remembers")
	err = store.Create(context.Background(), "first", snapshot.Content{
		Meta:   snapshot.Meta{Created: time.Now(), Image: "alpine", LinearMemory: int64(len(memory))},
		Memory: []snapshot.Extent{{Length: int64(len(memory)), Source: bytes.NewReader(memory)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	file, err := store.Open("first")
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	for _, r := range file.Memory() { // to be mapped, or read
		part := make([]byte, 24)
		if _, err := r.File.ReadAt(part, r.Offset); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d bytes at %d: %s\n", r.Length, r.At, part)
	}
	fmt.Println(file.Meta().Image, file.Verify(context.Background()))
	// Output:
	// 65536 bytes at 20971520: what a machine remembers
	// alpine <nil>
}
