// Package wasi implements WASI preview 1 for wazero, with files that a host supplies: streams, disks, sockets, standard
// streams, and directories that are confined to an [os.Root].
//
// One host module serves a whole runtime ([Instantiate]); the [System] that a call concerns travels in the call's
// context ([WithSystem]), so instances share the compiled host functions and nothing else.
//
// # Concurrency
//
// The guest's calls on one System come from one goroutine at a time: the one that runs the module. [System.Wait] and
// [System.TakeReady] belong to that goroutine too, since only one waiter is woken. Everything else, [System.SetFile],
// [System.Notify], [System.Close] and the host side of a [Stream] or [Conn], may be called from any goroutine at any
// time. A [File]'s methods are called by the running goroutine and may be called by Close from another.
//
// # Blocking
//
// A file never blocks in its methods; it answers [ErrnoAgain] and calls its notify function when that changes. A guest
// that clears the NONBLOCK flag blocks in the System instead, like poll_oneoff: on a channel, without spinning, until
// the file is ready, the context of the call is done, or the System is closed. In the last two cases the module is
// closed and the call ends with wazero's [sys.ExitError]. What a host answers directly ([StreamHost.Direct]) takes as long as that takes.
//
// # What it does not do
//
// It opens no sockets, does not resolve names, starts no goroutines except the one that reads an [os.File] given as
// standard input, and has no global state.
package wasi
