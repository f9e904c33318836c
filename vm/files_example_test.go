package vm_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"agentvm/internal/storage/disk"
	"agentvm/vm"
)

func ExampleVM_WriteFile() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	if err := v.WriteFile(ctx, "/root/greeting", []byte("hello\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	r, err := v.Exec(ctx, "cat /root/greeting")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", r.Stdout)
	// Output: hello
}

func ExampleVM_CopyFrom() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Exec(ctx, "mkdir -p /srv/site; echo text >/srv/site/page; ln -s /etc/passwd /srv/site/link"); err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	copied, err := v.CopyFrom(ctx, "/srv/site", dir, vm.CopyOptions{MaxBytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "site", "page"))
	fmt.Printf("%s%v %d entry\n%q\n", page, err, copied.Entries, copied.Reasons)
	// Output:
	// text
	// <nil> 1 entry
	// ["\"link\" is a link that leads out: to \"/etc/passwd\""]
}

func ExampleVM_StartJob() {
	ctx := context.Background()
	v, err := vm.Start(ctx, vm.Config{Image: "busybox"})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	j, err := v.StartJob(ctx, vm.Command{Line: "read name; echo hello $name"}, vm.JobOptions{ID: "greeter"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(j.Stdin(), "world")
	for end, next := false, vm.Cursor(0); !end; {
		o, err := j.Output(ctx, next, 0) // from 0 again, it would find the same
		if err != nil {
			log.Fatal(err)
		}
		for _, c := range o.Chunks {
			fmt.Printf("%s", c.Data)
		}
		end, next = o.End != nil, o.Next
	}
	// Output: hello world
}

// Files of a VM with a disk are there at the next start.
func Example_disk() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	config := vm.Config{Image: "busybox", Disk: filepath.Join(dir, "disk.img")}
	if err := disk.Create(config.Disk, 0); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		v, err := vm.Start(ctx, config)
		if err != nil {
			log.Fatal(err)
		}
		r, err := v.Exec(ctx, "echo started >>/root/log; cat /root/log")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", r.Stdout)
		if err := v.Stop(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// started
	//
	// started
	// started
}
