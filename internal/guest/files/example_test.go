//go:build linux

package files_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"

	"agentvm/internal/guest/files"
	"agentvm/internal/guest/guestrpc"
)

// A tree is packed below one root and unpacked elsewhere.
func ExampleService() {
	root, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	s, err := files.New(root)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.MakeDir("/a/b", 0o750, true); err != nil {
		log.Fatal(err)
	}
	var archive bytes.Buffer
	summary, err := s.Pack(context.Background(), &archive, []string{"/a"}, guestrpc.PackOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Unpack(context.Background(), &archive, "/copy", guestrpc.UnpackOptions{}); err != nil {
		log.Fatal(err)
	}
	info, err := s.Stat("/copy/a/b", false)
	fmt.Println(summary.Entries, info.Mode, err)
	// Output: 2 drwxr-x--- <nil>
}
