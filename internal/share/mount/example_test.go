package mount_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount"
	"agentvm/internal/share/mount/fusetest"
)

// A machine's virtio-fs device is one end of a byte stream; here a client in the same process takes its place.
func Example() {
	dir, err := os.MkdirTemp("", "share")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello"), 0o644); err != nil {
		log.Fatal(err)
	}

	spec, err := mount.Parse(dir + ":/work:ro")
	if err != nil {
		log.Fatal(err)
	}
	server, err := mount.NewServer(mount.Config{Dir: spec.HostPath, ReadOnly: spec.ReadOnly})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	host, guest := net.Pipe()
	go server.Serve(context.Background(), host)

	root, err := fusetest.Mount(guest)
	if err != nil {
		log.Fatal(err)
	}
	file, err := root.Walk([]string{"greeting"})
	if err != nil {
		log.Fatal(err)
	}
	if err := file.Open(fusetest.ReadOnly); err != nil {
		log.Fatal(err)
	}
	content := make([]byte, 5)
	if _, err := file.ReadAt(content, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s in %s\n", content, spec.GuestPath)
	fmt.Println(root.UnlinkAt("greeting", 0) == errno.EROFS)
	// Output:
	// hello in /work
	// true
}
