package vm_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

// The examples boot the image built into the program, so that they need no network. Without Image, Start boots Alpine.
func Example() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	r, err := v.Exec(ctx, "uname -sm; exit 3")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s%d\n", r.Stdout, r.ExitCode)
	// Output:
	// Linux riscv64
	// 3
}

func ExampleVM_Run() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	r, err := v.Run(ctx, vm.Command{
		Line: "echo hello $NAME; sleep 60", Env: []string{"NAME=world"},
		Stdout: os.Stdout, Timeout: 2 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("timed out:", r.TimedOut)
	// Output:
	// hello world
	// timed out: true
}

// A guest that may reach one server, and what it tried besides.
func ExampleNetwork() {
	ctx := context.Background()
	rule, err := egress.ParseRule("pypi.org:443")
	if err != nil {
		log.Fatal(err)
	}
	v, err := vm.Start(ctx, vm.Config{Image: "busybox", Network: vm.Network{
		Policy: egress.Policy{Allow: []egress.Rule{rule}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	r, err := v.Exec(ctx, "wget -q http://203.0.112.1/")
	if err != nil {
		log.Fatal(err)
	}
	v.Close() // after that all denials are known
	fmt.Println("exit code", r.ExitCode)
	denials, err := v.Denials(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range denials {
		fmt.Println(d.Verdict, d.Target(), d.Reason)
	}
	// Output:
	// exit code 1
	// deny 203.0.112.1:80 not-in-allowlist
}

func ExampleVM_Shell() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	sh, err := v.Shell(ctx, vm.ShellConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer sh.Close()
	for _, line := range []string{"cd /tmp", "x=kept", "echo $PWD $x"} {
		r, err := sh.Exec(ctx, line)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(string(r.Stdout))
	}
	// Output: /tmp kept
}
