package images_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"agentvm/images"
)

// A root file system in a tar archive becomes an image with a root disk.
func Example() {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	hello := []byte("hello\n")
	w.WriteHeader(&tar.Header{Name: "etc/motd", Mode: 0o644, Size: int64(len(hello))})
	w.Write(hello)
	w.Close()

	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := images.Open(dir)
	if err != nil {
		log.Fatal(err)
	}
	image, err := store.Import(context.Background(), "greeting", &archive)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(image.Name, image.Size, image.RootDiskDigest[:6])
	// Output: greeting 8192 sha256
}
