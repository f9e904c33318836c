package standalone

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental/sock"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"agentvm/images"
	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/vm"
)

// onBoth runs a test with modules of both machines, which have their devices in common.
func onBoth(t *testing.T, test func(*testing.T, platform.Architecture)) {
	if testing.Short() {
		t.Skip("boots a guest")
	}
	for _, of := range platform.Supported() {
		t.Run(string(of), func(t *testing.T) { test(t, of) })
	}
}

// export writes the built-in root as a module.
func export(t *testing.T, of platform.Architecture, change func(*images.Image)) []byte {
	t.Helper()
	store, err := images.Config{Dir: t.TempDir()}.Open()
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.For(of).Resolve(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	disk, err := store.OpenRootDisk(image)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if change != nil {
		change(image)
	}
	var module bytes.Buffer
	if err := vm.ExportWASI(t.Context(), image, disk, 64<<20, &module); err != nil {
		t.Fatal(err)
	}
	return module.Bytes()
}

// foreign is a runtime that has nothing of agentvm: wazero with its own WASI.
type foreign struct {
	runtime wazero.Runtime
	module  wazero.CompiledModule
	listen  sock.Config     // nil: it has no sockets
	dirs    wazero.FSConfig // nil: it has no directories
}

func newForeign(t *testing.T, module []byte) foreign {
	t.Helper()
	runtime := wazero.NewRuntimeWithConfig(t.Context(), wazero.NewRuntimeConfig().WithCloseOnContextDone(true))
	t.Cleanup(func() { runtime.Close(context.Background()) })
	wasi_snapshot_preview1.MustInstantiate(t.Context(), runtime)
	compiled, err := runtime.CompileModule(t.Context(), module)
	if err != nil {
		t.Fatal(err)
	}
	return foreign{runtime: runtime, module: compiled}
}

func (f foreign) run(t *testing.T, input io.Reader, env [2]string, args ...string) (stdout, stderr string, code uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if f.listen != nil {
		ctx = sock.WithConfig(ctx, f.listen)
	}
	var out, errs bytes.Buffer
	config := wazero.NewModuleConfig().WithName("").WithArgs(append([]string{"module.wasm"}, args...)...).WithStdin(input).WithStdout(&out).WithStderr(&errs).
		WithSysNanosleep().WithSysNanotime().WithSysWalltime().WithRandSource(nil)
	if f.dirs != nil {
		config = config.WithFSConfig(f.dirs)
	}
	if env[0] != "" {
		config = config.WithEnv(env[0], env[1])
	}
	_, err := f.runtime.InstantiateModule(ctx, f.module, config)
	if exit := (*sys.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out.String(), errs.String(), code
}

func TestExportWASI(t *testing.T) { onBoth(t, exportWASI) }

func exportWASI(t *testing.T, of platform.Architecture) {
	f := newForeign(t, export(t, of, func(i *images.Image) {
		i.Cmd, i.Env, i.WorkingDir, i.User = []string{"sh", "-c", "echo default; pwd; id -u"}, []string{"OF=image", "BOTH=image"}, "/usr", "7"
	}))
	large := strings.Repeat("0123456789abcde\n", 100_000)
	for _, tt := range []struct {
		name  string
		input string
		env   [2]string
		args  []string
		out   string
		err   string
		code  uint32
	}{
		{name: "the image's command", out: "default\n/usr\n7\n"},
		{name: "arguments", args: []string{"printf", "%s|", "a b", "", "'", "ü"}, out: "a b||'|ü|"},
		{name: "streams and exit code", args: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, out: "out\n", err: "err\n", code: 7},
		{name: "variables", env: [2]string{"BOTH", "the  module"}, args: []string{"sh", "-c", `echo "$OF $BOTH"`}, out: "image the  module\n"},
		{name: "no input", args: []string{"wc", "-c"}, out: "0\n"},
		{name: "input", input: large, args: []string{"cat"}, out: large},
		{name: "input that is not read", input: large, args: []string{"true"}},
		{name: "signal", args: []string{"sh", "-c", "kill -9 $$"}, code: 137},
		{name: "no such command", args: []string{"nosuch"}, err: "agentvm: command not found: \"nosuch\"\n", code: 127},
		{name: "background", args: []string{"sh", "-c", "sleep 100 & echo done"}, out: "done\n"},
		{name: "container2wasm's options", args: []string{"--mac=02:00:00:00:00:09", "--entrypoint", "/bin/echo", "--", "-net"}, out: "-net\n"},
		{name: "no card", args: []string{"cat", "/sys/class/net/eth0/operstate"}, out: "down\n"},
		{name: "no socket", args: []string{"-net", "socket", "true"}, code: 125,
			err: "agentvm: -net socket: the runtime gave no listening socket, as the first descriptor after the standard streams and directories\n"},
		{name: "another network", args: []string{"--net=qemu", "true"}, err: "agentvm: -net qemu: want socket, or socket=listenfd=N for another descriptor of the listening socket\n", code: 125},
		{name: "no MAC", args: []string{"-net=socket", "-mac", "x", "true"}, err: "agentvm: -mac x: want an Ethernet address, as 02:00:00:00:00:01\n", code: 125},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, code := f.run(t, strings.NewReader(tt.input), tt.env, tt.args...)
			if out != tt.out || errs != tt.err || code != tt.code {
				t.Errorf("got %.200q, %.200q, code %d, want %.200q, %q, code %d", out, errs, code, tt.out, tt.err, tt.code)
			}
		})
	}
	t.Run("time and identity", func(t *testing.T) {
		const script = "date +%s; cat /etc/machine-id; od -An -N16 -tx1 /dev/urandom"
		seen := map[string]bool{}
		for range 2 {
			out, errs, _ := f.run(t, strings.NewReader(""), [2]string{}, "sh", "-c", script)
			lines := strings.Split(out, "\n")
			if len(lines) < 3 || seen[lines[1]] || seen[lines[2]] {
				t.Fatalf("two runs of one module have the same identity or random numbers: %q %q", out, errs)
			}
			seen[lines[1]], seen[lines[2]] = true, true
			if now, err := time.ParseDuration(lines[0] + "s"); err != nil || time.Since(time.Unix(0, int64(now))).Abs() > time.Minute {
				t.Errorf("the guest's clock says %s", lines[0])
			}
		}
	})
}

// TestExportedGuestIsConfined: all that a guest can do in its module is what the module imports. Its kernel may do there what it likes.
func TestExportedGuestIsConfined(t *testing.T) { onBoth(t, exportedGuestIsConfined) }

func exportedGuestIsConfined(t *testing.T, of platform.Architecture) {
	f := newForeign(t, export(t, of, nil))
	allowed := strings.Fields("args_get args_sizes_get environ_get environ_sizes_get clock_time_get random_get poll_oneoff proc_exit " +
		"fd_read fd_write fd_pread fd_pwrite fd_advise fd_sync fd_filestat_get sock_accept " +
		"fd_prestat_get fd_prestat_dir_name fd_fdstat_get fd_close fd_readdir fd_filestat_set_size path_open path_filestat_get path_filestat_set_times " +
		"path_create_directory path_remove_directory path_unlink_file path_rename path_link path_symlink path_readlink")
	for _, function := range f.module.ImportedFunctions() {
		module, name, _ := function.Import()
		if module != wasi_snapshot_preview1.ModuleName || !slices.Contains(allowed, name) {
			t.Errorf("the module imports %s of %s", name, module)
		}
	}
	for name, script := range map[string]string{"panic": "echo c >/proc/sysrq-trigger", "reboot": "reboot -f"} {
		t.Run(name, func(t *testing.T) {
			_, errs, code := f.run(t, strings.NewReader(""), [2]string{}, "sh", "-c", script)
			if code != 125 || !strings.Contains(errs, "agentvm: the guest has crashed") {
				t.Errorf("code %d, %.200q", code, errs)
			}
		})
	}
	if _, _, code := f.run(t, strings.NewReader(""), [2]string{}, "poweroff", "-f"); code != 0 {
		t.Errorf("power off: code %d", code)
	}
}

// TestExportRunsHere: RunModule runs the module as it runs container2wasm's.
func TestExportRunsHere(t *testing.T) { onBoth(t, exportRunsHere) }

func exportRunsHere(t *testing.T, of platform.Architecture) {
	path := filepath.Join(t.TempDir(), "busybox.wasm")
	if err := os.WriteFile(path, export(t, of, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	result, err := vm.RunModule(t.Context(), vm.Config{Image: path, StoreDir: t.TempDir()}, vm.Command{Line: "echo here; echo there >&2; exit 3", Stdout: &out})
	if err != nil || result.ExitCode != 3 {
		t.Fatalf("%+v, %v", result, err)
	}
	if got := out.String(); got != "here\nthere\n" {
		t.Errorf("output %q: standard error is part of it", got)
	}
}

// TestExportOutputIsWhole: the runtime gets all of an output larger than any buffer on its way.
func TestExportOutputIsWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a guest")
	}
	f := newForeign(t, export(t, platform.Default, nil))
	out, errs, code := f.run(t, strings.NewReader(""), [2]string{}, "sh", "-c", "head -c 5000000 /dev/zero; head -c 100000 /dev/zero >&2; exit 9")
	if len(out) != 5_000_000 || len(errs) != 100_000 || code != 9 {
		t.Errorf("%d and %d bytes, code %d", len(out), len(errs), code)
	}
}

type emptyDisk struct{}

func (emptyDisk) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }

func TestExportTooLarge(t *testing.T) {
	program, err := machine.NewStandaloneProgram(t.Context(), platform.Default)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close(t.Context())
	m, err := program.NewMachine(t.Context(), machine.Config{Memory: machine.MinMemory})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.WriteStandalone(io.Discard, emptyDisk{}, 4<<30); !errors.Is(err, machine.ErrStandaloneTooLarge) {
		t.Errorf("got %v", err)
	}
}
