package mount_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"agentvm/internal/mount"

	"github.com/hugelgupf/p9/p9"
)

// A machine's 9p device is one end of a byte stream; here a client in the same process takes its place.
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

	client, err := p9.NewClient(guest)
	if err != nil {
		log.Fatal(err)
	}
	root, err := client.Attach("")
	if err != nil {
		log.Fatal(err)
	}
	_, file, err := root.Walk([]string{"greeting"})
	if err != nil {
		log.Fatal(err)
	}
	if _, _, err := file.Open(p9.ReadOnly); err != nil {
		log.Fatal(err)
	}
	content := make([]byte, 5)
	if _, err := file.ReadAt(content, 0); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s in %s\n", content, spec.GuestPath)
	fmt.Println(root.UnlinkAt("greeting", 0))
	// Output:
	// hello in /work
	// read-only file system
}
