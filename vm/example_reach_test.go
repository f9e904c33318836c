package vm_test

import (
	"context"
	"fmt"
	"io"

	"agentvm/vm"
)

// A service of the host at the guest's 127.0.0.1, for the guest's programs only.
func ExampleVM_Listen() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Close()
	l, err := v.Listen(ctx, "tcp", "127.0.0.1:4000")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "hello from the host")
			c.Close()
		}
	}()
	r, err := v.Exec(ctx, "grep -c ':0FA0 00000000:0000 0A' /proc/net/tcp") // it listens there
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(r.Stdout))
	// and the other way round, here to the same listener
	c, err := v.DialContext(ctx, "tcp", "localhost:4000")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	b, _ := io.ReadAll(c)
	fmt.Print(string(b))
	// Output:
	// 1
	// hello from the host
}
