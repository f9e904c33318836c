//go:build linux

package guest_test

import (
	"context"
	"fmt"
	"net"
	"os"

	"agentvm/internal/guest"
	"agentvm/internal/guest/guestrpc"
)

// A supervisor serves a host over any byte stream; in a machine it is a console port.
func Example() {
	supervisor, err := guest.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	host, port := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	go func() { served <- guestrpc.Serve(ctx, port, supervisor, nil) }()

	client, err := guestrpc.Dial(ctx, host, guestrpc.ClientConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	process, err := client.Exec(ctx, guestrpc.ExecParams{Args: []string{"/bin/sh", "-c", "echo hello; exit 3"}, Stdout: os.Stdout})
	if err != nil {
		fmt.Println(err)
		return
	}
	status, err := process.Wait(ctx)
	fmt.Println(status.Code, err)

	_ = client.Close()
	stop()
	<-served
	_ = supervisor.Close()
	// Output:
	// hello
	// 3 <nil>
}
