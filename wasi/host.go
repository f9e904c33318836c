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

// onFile makes a hostFunc of a call whose first parameter is a descriptor.
func onFile(call func(ctx context.Context, s *System, mod api.Module, d *descriptor, stack []uint64) Errno) hostFunc {
	return func(ctx context.Context, s *System, mod api.Module, stack []uint64) Errno {
		d, errno := s.lookup(uint32(stack[0]))
		if errno != ErrnoSuccess {
			return errno
		}
		return call(ctx, s, mod, d, stack)
	}
}

// onPath makes a hostFunc of a call about a path below the directory that its first parameter is. Parameters ptr and ptr+1 are the path.
func onPath(ptr int, right Rights, call func(s *System, mod api.Module, l location, stack []uint64) Errno) hostFunc {
	return func(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
		l, errno := s.locate(mod, stack[0], stack[ptr], stack[ptr+1], right)
		if errno != ErrnoSuccess {
			return errno
		}
		return call(s, mod, l, stack)
	}
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
	{"fd_advise", "iIIi", onFile(fdAdvise)},
	{"fd_allocate", "iII", onFile(fdAllocate)},
	{"fd_close", "i", fdClose},
	{"fd_datasync", "i", onFile(fdSync)},
	{"fd_fdstat_get", "ii", onFile(fdFdstatGet)},
	{"fd_fdstat_set_flags", "ii", onFile(fdFdstatSetFlags)},
	{"fd_fdstat_set_rights", "iII", onFile(fdFdstatSetRights)},
	{"fd_filestat_get", "ii", onFile(fdFilestatGet)},
	{"fd_filestat_set_size", "iI", onFile(fdFilestatSetSize)},
	{"fd_filestat_set_times", "iIIi", onFile(fdFilestatSetTimes)},
	{"fd_pread", "iiiIi", onFile(fdPread)},
	{"fd_prestat_get", "ii", onFile(fdPrestatGet)},
	{"fd_prestat_dir_name", "iii", onFile(fdPrestatDirName)},
	{"fd_pwrite", "iiiIi", onFile(fdPwrite)},
	{"fd_read", "iiii", onFile(fdRead)},
	{"fd_readdir", "iiiIi", fdReaddir},
	{"fd_renumber", "ii", fdRenumber},
	{"fd_seek", "iIii", onFile(fdSeek)},
	{"fd_sync", "i", onFile(fdSync)},
	{"fd_tell", "ii", onFile(fdTell)},
	{"fd_write", "iiii", onFile(fdWrite)},
	{"path_create_directory", "iii", onPath(1, RightPathCreateDirectory, pathCreateDirectory)},
	{"path_filestat_get", "iiiii", onPath(2, RightPathFilestatGet, pathFilestatGet)},
	{"path_filestat_set_times", "iiiiIIi", onPath(2, RightPathFilestatSetTimes, pathFilestatSetTimes)},
	{"path_link", "iiiiiii", pathLink},
	{"path_open", "iiiiiIIii", pathOpen},
	{"path_readlink", "iiiiii", onPath(1, RightPathReadlink, pathReadlink)},
	{"path_remove_directory", "iii", onPath(1, RightPathRemoveDirectory, pathRemoveDirectory)},
	{"path_rename", "iiiiii", pathRename},
	{"path_symlink", "iiiii", pathSymlink},
	{"path_unlink_file", "iii", onPath(1, RightPathUnlinkFile, pathUnlinkFile)},
	{"poll_oneoff", "iiii", pollOneoff},
	{"proc_raise", "i", procRaise},
	{"random_get", "ii", randomGet},
	{"sched_yield", "", schedYield},
	{"sock_accept", "iii", onSocket(sockAccept)},
	{"sock_recv", "iiiiii", onSocket(sockRecv)},
	{"sock_send", "iiiii", onSocket(sockSend)},
	{"sock_shutdown", "ii", onSocket(sockShutdown)},
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
