package disk_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"agentvm/internal/storage/disk"
)

func Example() {
	dir, err := os.MkdirTemp("", "disk")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "disk.img")
	if err := disk.Create(path, 1<<30); err != nil {
		log.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	_, again := disk.Open(path)
	fmt.Println(d.Size()>>20, "MiB, opened a second time:", again != nil)
	// Output: 1024 MiB, opened a second time: true
}
