package vm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"syscall"

	"agentvm/vm"
)

// A request to a server in the VM. This one is the test's own, behind a listener in the guest; a program of the guest is reached in the
// same way, and nothing else is.
func ExampleVM_HTTPClient() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox", Access: vm.Access{
		Listen: vm.PortPolicy{Allow: []vm.PortRange{{First: 3000, Last: 3999}}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	l, err := v.Listen(ctx, "tcp", "127.0.0.1:3000")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s of %s", r.URL.Path, r.Host)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	for _, url := range []string{"http://app.localhost:3000/index.html", "http://localhost:3001/", "http://localhost:8080/", "http://example.com/"} {
		answer, err := v.HTTPClient().Get(url)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			fmt.Println(url, "nothing listens")
			continue
		case errors.Is(err, syscall.EACCES):
			fmt.Println(url, "denied")
			continue
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			fmt.Println(url, "is not the VM's")
			continue
		case err != nil:
			log.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Status, string(body))
	}
	// Output:
	// 200 OK /index.html of app.localhost:3000
	// http://localhost:3001/ nothing listens
	// http://localhost:8080/ denied
	// http://example.com/ is not the VM's
}
