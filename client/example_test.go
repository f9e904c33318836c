package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"agentvm/client"
	"agentvm/vm"
)

// A VM of a daemon continues when its clients have gone, so that each step here could be another process. Program is the agentvm program;
// a program that is not agentvm names it.
func Example() {
	ctx := context.Background()
	program, err := os.Executable() // in these tests, it acts as agentvm
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := client.OpenStore(client.StoreOptions{Dir: dir, Program: program})
	if err != nil {
		log.Fatal(err)
	}

	config := client.Config{Config: vm.Config{Image: "busybox", StoreDir: dir}}
	v, err := store.Start(ctx, "dev", config, nil)
	if err != nil {
		log.Fatal(err)
	}
	job, err := v.StartJob(ctx, vm.Command{Line: "echo begun; sleep 1; echo done"}, vm.JobOptions{})
	if err != nil {
		log.Fatal(err)
	}
	id := job.ID()
	v.Close() // the VM and its job continue

	if v, err = store.Open(ctx, "dev"); err != nil {
		log.Fatal(err)
	}
	if job, err = v.Job(ctx, id); err != nil {
		log.Fatal(err)
	}
	end, err := client.Follow(ctx, job, vm.Command{Stdout: os.Stdout}, 0).Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", end.ExitCode)
	v.Close()

	how, err := store.Stop(ctx, "dev", 10*time.Second)
	if err := errors.Join(err, store.Remove(ctx, "dev")); err != nil {
		log.Fatal(how, err)
	}
	// Output:
	// begun
	// done
	// exit code 0
}
