package wasi

import (
	"context"
	"fmt"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// ModuleName is the name under which guests import the functions.
const ModuleName = "wasi_snapshot_preview1"

// hostFunc is one function of the specification. Its parameters are on the stack in order; those of 32 bits must be
// masked (u32), because wazero leaves the upper half undefined.
type hostFunc func(ctx context.Context, s *System, mod api.Module, stack []uint64) Errno

// Call implements api.GoModuleFunction: it finds the System and stores the result.
func (f hostFunc) Call(ctx context.Context, mod api.Module, stack []uint64) {
	s := systemFrom(ctx)
	if s == nil {
		stack[0] = uint64(ErrnoNosys)
		return
	}
	s.calls.Add(1)
	stack[0] = uint64(f(ctx, s, mod, stack))
	s.calls.Add(1)
}

// function is a row of the table of exports. The signature has a letter for each parameter: i is 32 bits, I is 64.
type function struct {
	name, params string
	call         hostFunc
}

// functions lists preview 1 by group; the files are named after the groups.
var functions = []function{
	{"args_get", "ii", argsGet},
	{"args_sizes_get", "ii", argsSizesGet},
	{"environ_get", "ii", environGet},
	{"environ_sizes_get", "ii", environSizesGet},
	{"clock_res_get", "ii", clockResGet},
	{"clock_time_get", "iIi", clockTimeGet},
	{"fd_advise", "iIIi", fdAdvise},
	{"fd_allocate", "iII", fdAllocate},
	{"fd_close", "i", fdClose},
	{"fd_datasync", "i", fdDatasync},
	{"fd_fdstat_get", "ii", fdFdstatGet},
	{"fd_fdstat_set_flags", "ii", fdFdstatSetFlags},
	{"fd_fdstat_set_rights", "iII", fdFdstatSetRights},
	{"fd_filestat_get", "ii", fdFilestatGet},
	{"fd_filestat_set_size", "iI", fdFilestatSetSize},
	{"fd_filestat_set_times", "iIIi", fdFilestatSetTimes},
	{"fd_pread", "iiiIi", fdPread},
	{"fd_prestat_get", "ii", fdPrestatGet},
	{"fd_prestat_dir_name", "iii", fdPrestatDirName},
	{"fd_pwrite", "iiiIi", fdPwrite},
	{"fd_read", "iiii", fdRead},
	{"fd_readdir", "iiiIi", fdReaddir},
	{"fd_renumber", "ii", fdRenumber},
	{"fd_seek", "iIii", fdSeek},
	{"fd_sync", "i", fdSync},
	{"fd_tell", "ii", fdTell},
	{"fd_write", "iiii", fdWrite},
	{"path_create_directory", "iii", pathCreateDirectory},
	{"path_filestat_get", "iiiii", pathFilestatGet},
	{"path_filestat_set_times", "iiiiIIi", pathFilestatSetTimes},
	{"path_link", "iiiiiii", pathLink},
	{"path_open", "iiiiiIIii", pathOpen},
	{"path_readlink", "iiiiii", pathReadlink},
	{"path_remove_directory", "iii", pathRemoveDirectory},
	{"path_rename", "iiiiii", pathRename},
	{"path_symlink", "iiiii", pathSymlink},
	{"path_unlink_file", "iii", pathUnlinkFile},
	{"poll_oneoff", "iiii", pollOneoff},
	{"proc_raise", "i", procRaise},
	{"random_get", "ii", randomGet},
	{"sched_yield", "", schedYield},
	{"sock_accept", "iii", sockAccept},
	{"sock_recv", "iiiiii", sockRecv},
	{"sock_send", "iiiii", sockSend},
	{"sock_shutdown", "ii", sockShutdown},
}

// Instantiate registers the host module in rt, once for all instances of the runtime. Closing it makes no sense before
// the runtime is closed.
func Instantiate(ctx context.Context, rt wazero.Runtime) (api.Closer, error) {
	b := rt.NewHostModuleBuilder(ModuleName)
	for _, f := range functions {
		b.NewFunctionBuilder().
			WithGoModuleFunction(f.call, signature(f.params), []api.ValueType{api.ValueTypeI32}).
			WithName(f.name).Export(f.name)
	}
	b.NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(procExit), signature("i"), nil).
		WithName("proc_exit").Export("proc_exit")
	m, err := b.Instantiate(ctx)
	if err != nil {
		return nil, fmt.Errorf("register %s: %w", ModuleName, err)
	}
	return m, nil
}

// signature spells the letters out.
func signature(params string) []api.ValueType {
	types := make([]api.ValueType, len(params))
	for i, p := range params {
		types[i] = api.ValueTypeI32
		if p == 'I' {
			types[i] = api.ValueTypeI64
		}
	}
	return types
}
