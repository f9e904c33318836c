package vm_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"agentvm/vm"
)

// Three ways to continue from one prepared VM.
func ExampleVM_Fork() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Exec(ctx, "echo prepared >/root/state"); err != nil {
		log.Fatal(err)
	}
	forks, err := v.Fork(ctx, 3, vm.ForkOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for i, f := range forks {
		r, err := f.Exec(ctx, fmt.Sprintf("echo way %d >>/root/state; cat /root/state", i))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", r.Stdout)
		f.Close()
	}
	r, err := v.Exec(ctx, "cat /root/state")
	fmt.Printf("%s%v\n", r.Stdout, err)
	// Output:
	// prepared
	// way 0
	// prepared
	// way 1
	// prepared
	// way 2
	// prepared
	// <nil>
}

func ExampleRestore() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := v.Exec(ctx, "echo prepared >/root/state"); err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(dir, "prepared.snap")
	if _, err := v.Snapshot(ctx, path, vm.SnapshotOptions{Comment: "before the experiment"}); err != nil {
		log.Fatal(err)
	}
	v.Close()

	restored, err := vm.Restore(ctx, path, vm.Config{}, vm.RestoreOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer restored.Close()
	r, err := restored.Exec(ctx, "cat /root/state; head -n 1 /run/agentvm/generation")
	fmt.Printf("%s%v\n", r.Stdout, err)
	// Output:
	// prepared
	// 1
	// <nil>
}

func ExampleVM_Pause() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	if err := v.Pause(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Paused()) // no processor time is used now
	if err := v.Resume(ctx); err != nil {
		log.Fatal(err)
	}
	r, err := v.Exec(ctx, "echo on it goes")
	fmt.Printf("%s%v\n", r.Stdout, err)
	// Output:
	// true
	// on it goes
	// <nil>
}
