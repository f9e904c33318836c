package wasi

import (
	"context"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
)

// The specification's functions, by name. A guest that imports one that is missing could not be instantiated.
const preview1 = `args_get args_sizes_get environ_get environ_sizes_get clock_res_get clock_time_get fd_advise fd_allocate
fd_close fd_datasync fd_fdstat_get fd_fdstat_set_flags fd_fdstat_set_rights fd_filestat_get fd_filestat_set_size
fd_filestat_set_times fd_pread fd_prestat_get fd_prestat_dir_name fd_pwrite fd_read fd_readdir fd_renumber fd_seek fd_sync
fd_tell fd_write path_create_directory path_filestat_get path_filestat_set_times path_link path_open path_readlink
path_remove_directory path_rename path_symlink path_unlink_file poll_oneoff proc_exit proc_raise sched_yield random_get
sock_accept sock_recv sock_send sock_shutdown`

func TestAllFunctionsAreThere(t *testing.T) {
	ctx := context.Background()
	rt := wazero.NewRuntime(ctx)
	defer rt.Close(ctx)
	if _, err := Instantiate(ctx, rt); err != nil {
		t.Fatal(err)
	}
	exports := rt.Module(ModuleName).ExportedFunctionDefinitions()
	for _, name := range strings.Fields(preview1) {
		if exports[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	if want := len(strings.Fields(preview1)); len(exports) != want {
		t.Errorf("%d functions, want %d", len(exports), want)
	}
	if _, err := Instantiate(ctx, rt); err == nil || !strings.Contains(err.Error(), ModuleName) {
		t.Errorf("registering twice: %v", err)
	}
}

// Two guests of one runtime see their own systems.
func TestSystemsAreSeparate(t *testing.T) {
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig())
	defer rt.Close(ctx)
	if _, err := Instantiate(ctx, rt); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"one"}, {"one", "two"}} {
		g := instantiateGuest(t, rt, Config{Args: args})
		res := g.alloc(8)
		g.want(ErrnoSuccess, "args_sizes_get", res, res+4)
		if got := g.u32(res); got != uint32(len(args)) {
			t.Errorf("%d arguments, want %d", got, len(args))
		}
	}
}

func TestTooManyFiles(t *testing.T) {
	g, _ := newDirGuest(t, false)
	for fd := int32(4); fd < maxFiles; fd++ {
		g.sys.SetFile(fd, NewOutput(nil))
	}
	if _, errno := g.openAt(3, "f", 0, oflagCreat, rightsRW, 0); errno != ErrnoMfile {
		t.Errorf("open with a full table: %v", errno)
	}
	g.want(ErrnoSuccess, "fd_close", 1234)
	if fd, errno := g.openAt(3, "f", 0, oflagCreat, rightsRW, 0); fd != 1234 || errno != ErrnoSuccess {
		t.Errorf("open got %d, %v; want the free number", fd, errno)
	}
}

// A module without memory gets an error from the call, not a crash of the host.
func TestGuestWithoutMemory(t *testing.T) {
	ctx := WithSystem(context.Background(), NewSystem(Config{}))
	rt := wazero.NewRuntime(ctx)
	defer rt.Close(ctx)
	if _, err := Instantiate(ctx, rt); err != nil {
		t.Fatal(err)
	}
	module := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	module = append(module, wasmSection(1, [][]byte{{0x60, 2, 0x7f, 0x7f, 1, 0x7f}})...)
	module = append(module, wasmSection(2, [][]byte{append(append(wasmName(ModuleName), wasmName("random_get")...), 0, 0)})...)
	module = append(module, wasmSection(3, [][]byte{{0}})...)
	module = append(module, wasmSection(7, [][]byte{append(wasmName("f"), 0, 1)})...)
	module = append(module, wasmSection(10, [][]byte{{8, 0, 0x20, 0, 0x20, 1, 0x10, 0, 0x0b}})...)
	mod, err := rt.Instantiate(ctx, module)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := mod.ExportedFunction("f").Call(ctx, 0, 8); err == nil {
		t.Errorf("a call that needs memory returned %v", res)
	}
}
