package preview_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"agentvm/internal/network/preview"
)

// A program is a Dialer for one VM, whose program is a server of this process.
type program struct{ address string }

func (p program) DialPreview(ctx context.Context, _ string, _ uint16) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", p.address)
}

func Example() {
	directory, err := os.MkdirTemp("", "previews")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(directory)
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer inside.Close()
	go http.Serve(inside, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s of %s", r.URL.Path, r.Host)
	}))

	store, err := preview.OpenStore(filepath.Join(directory, "previews.db"), preview.Options{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := preview.NewServer(preview.ServerConfig{Store: store, Dialer: program{inside.Addr().String()}})
	go server.Serve(context.Background(), listener)
	defer server.Close()

	link, err := store.Create(context.Background(), "dev", "vm-1", 3000, 10*time.Minute)
	if err != nil {
		panic(err)
	}
	url := link.PathURL(uint16(listener.Addr().(*net.TCPAddr).Port)) // browsers take link.URL
	show(url + "hello")
	store.Revoke(context.Background(), link.ID)
	show(url + "hello")
	// Output:
	// 200 OK: /hello of localhost:3000
	// 410 Gone: This preview was withdrawn. Whoever shared it has taken it back. Ask for a new link if you still need it.
}

func show(url string) {
	response, err := http.Get(url)
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s: %s\n", response.Status, text)
}
