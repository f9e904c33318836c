package machine_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// deviceSources are the devices and their test driver, relative to this folder.
var deviceSources = []string{
	"src/common/virtio.c", "src/common/virtqueue.c", "src/common/virtio_console.c", "src/common/virtio_rng.c", "src/common/virtio_net.c",
	"src/common/virtio_blk.c", "src/common/virtio_fs.c", "src/common/virtio_balloon.c", "src/common/vmgenid.c", "src/common/rtc.c", "src/common/devices.c", "src/test/devices_*.c",
}

// TestDevices runs each case of src/test/devices_*_test.c against the devices, compiled for the host with the
// address and undefined-behaviour sanitizers: a driver is the adversary here.
func TestDevices(t *testing.T) {
	t.Parallel()
	program := buildDeviceTests(t)
	list, err := exec.Command(program).Output()
	if err != nil {
		t.Fatalf("list the cases: %v", err)
	}
	names := strings.Split(strings.TrimSpace(string(list)), "\n")
	if len(names) < 50 {
		t.Fatalf("%d cases, expected at least 50", len(names))
	}
	run := startDeviceTests(t, program)
	for _, name := range names {
		t.Run(name, func(t *testing.T) { run(t, name) })
	}
}

// startDeviceTests starts the program and returns what has it run a case.
func startDeviceTests(t *testing.T, program string) func(t *testing.T, name string) {
	t.Helper()
	cmd := exec.Command(program, "run")
	names, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		names.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewScanner(out)
	return func(t *testing.T, name string) {
		t.Helper()
		if _, err := fmt.Fprintln(names, name); err != nil {
			t.Fatal(err)
		}
		var said []string
		for lines.Scan() {
			status, ended := strings.CutPrefix(lines.Text(), "= ")
			if !ended {
				said = append(said, lines.Text())
				continue
			}
			if status != "0" {
				t.Errorf("status %s\n%s", status, strings.Join(said, "\n"))
			}
			return
		}
		t.Fatalf("the program ended: %v\n%s", lines.Err(), strings.Join(said, "\n"))
	}
}

// buildDeviceTests compiles without PIE: iovecs hold 32-bit addresses, and so static data lies below 4 GiB.
func buildDeviceTests(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("gcc is missing (Debian package gcc)")
		}
		t.Skip("needs gcc (Debian package gcc)")
	}
	program := filepath.Join(t.TempDir(), "devices")
	args := []string{"-std=c17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-attributes", "-fno-pie", "-no-pie",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", program}
	for _, pattern := range deviceSources {
		files, err := filepath.Glob(filepath.FromSlash(pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file for %s: %v", pattern, err)
		}
		args = append(args, files...)
	}
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}
