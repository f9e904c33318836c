package mount

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

// lockingGuest is a guest whose kernel has the locks of fcntl(2) in the host.
type lockingGuest struct{ *rawClient }

func attachLocking(t *testing.T, config Config) *lockingGuest {
	t.Helper()
	return beginLocking(t, serve(t, config))
}

func beginLocking(t *testing.T, conn net.Conn) *lockingGuest {
	t.Helper()
	g := &lockingGuest{&rawClient{t: t, conn: conn}}
	number, reply := g.call(opInit, 0, fusetest.InitBody().U32(flagHostDir|flagHostLocks))
	if reply.take(12); number != 0 || reply.u32()&flagRangeLocks == 0 {
		t.Fatalf("init: %v, without locks", number)
	}
	return g
}

// lockedFile is a file that a guest has opened.
type lockedFile struct {
	g            *lockingGuest
	node, handle uint64
}

func (g *lockingGuest) openFile(name string, flags uint32) lockedFile {
	g.t.Helper()
	node := g.lookup(rootID, name)
	number, reply := g.call(opOpen, node, body.U32(flags).U32(0))
	if number != 0 {
		g.t.Fatal(number)
	}
	return lockedFile{g, node, reply.u64()}
}

func rangeBody(handle, program, start, end uint64, kind uint32) fusetest.Body {
	return body.U64(handle).U64(program).U64(start).U64(end).U32(kind).U32(uint32(program) + 100).U32(0).U32(0)
}

func (f lockedFile) want(program, start, end uint64, kind uint32, want errno.Errno) {
	f.g.t.Helper()
	if got := f.g.errno(opSetlk, f.node, rangeBody(f.handle, program, start, end, kind)); got != want {
		f.g.t.Errorf("lock of %d, %d to %d: %v, want %v", program, start, end, got, want)
	}
}

// gets waits for a lock that another guest is about to lose.
func (f lockedFile) gets(program, start, end uint64, kind uint32) {
	f.g.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); f.g.errno(opSetlk, f.node, rangeBody(f.handle, program, start, end, kind)) != 0; {
		if time.Now().After(deadline) {
			f.g.t.Fatal("the lock stays")
		}
		time.Sleep(time.Millisecond)
	}
}

func (f lockedFile) flush(program uint64) {
	f.g.t.Helper()
	if got := f.g.errno(opFlush, f.node, body.U64(f.handle).U64(0).U64(program)); got != 0 {
		f.g.t.Error(got)
	}
}

func (f lockedFile) release() {
	f.g.t.Helper()
	if got := f.g.errno(opRelease, f.node, body.U64(f.handle).U64(0).U64(0)); got != 0 {
		f.g.t.Error(got)
	}
}

// TestRangeLocks has programs of two guests and of the host lock parts of one file: a lock is the program's, whatever it has open and who has
// inherited that, and ends with the program's first close.
func TestRangeLocks(t *testing.T) {
	const one, two, three = 1, 2, 3 // programs
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	writeFile(t, filepath.Join(dir, ".git/config"), "")
	config := Config{Dir: dir, Protected: DefaultProtected}
	g, other := attachLocking(t, config), attachLocking(t, config)
	file, again, theirs := g.openFile("file", 2), g.openFile("file", 2), other.openFile("file", 2)

	file.want(one, 10, 19, lockWrite, 0)
	theirs.want(one, 0, 9, lockWrite, 0)                         // beside it
	theirs.want(one, 19, 30, lockRead, errno.EAGAIN)             // the same number is another program in another guest
	again.want(one, 15, 40, lockWrite, 0)                        // by another descriptor of the same program
	file.want(two, 40, 40, lockRead, errno.EAGAIN)               // a program that has inherited the descriptor
	again.want(three, 40, 40, lockRead, errno.EAGAIN)            // one that has the other one
	file.want(two, 41, lastByte, lockRead, 0)                    // what is free
	again.want(three, 1<<62, lastByte, lockRead, 0)              // is shared
	theirs.want(one, 1<<62, lastByte, lockWrite, errno.EAGAIN)   // by two
	file.want(one, 12, 12, lockNone, 0)                          // a hole
	theirs.want(one, 12, 12, lockWrite, 0)                       // that another one fills
	file.want(one, 0, lastByte, lockRead, errno.EAGAIN)          // so that nothing changes
	theirs.want(one, 13, 13, lockRead, errno.EAGAIN)             //
	file.want(one, 5, 4, lockRead, errno.EINVAL)                 // no range
	file.want(one, 0, lastByte+1, lockRead, errno.EINVAL)        //
	file.want(one, 0, 1, 3, errno.EINVAL)                        // no kind
	lockedFile{g, file.node, 99}.want(one, 0, 1, 0, errno.EBADF) // no file

	host, err := os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	onHost := func(start int64, want error) {
		t.Helper()
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: start, Len: 1}
		if err := unix.FcntlFlock(host.Fd(), unix.F_SETLK, &lock); err != want {
			t.Errorf("the host's lock of %d: %v, want %v", start, err, want)
		}
	}
	onHost(15, unix.EAGAIN)
	onHost(12, unix.EAGAIN)
	tested := func(f lockedFile, program, start, end uint64, kind uint32) []uint64 {
		t.Helper()
		number, reply := f.g.call(opGetlk, f.node, rangeBody(f.handle, program, start, end, kind))
		if number != 0 {
			t.Fatal(number)
		}
		return []uint64{reply.u64(), reply.u64(), uint64(reply.u32()), uint64(reply.u32())}
	}
	for _, c := range []struct{ got, want []uint64 }{
		{tested(again, three, 20, 20, lockRead), []uint64{13, 40, lockWrite, 101}},
		{tested(theirs, one, 20, 20, lockRead), []uint64{13, 40, lockWrite, 0}}, // another guest has no process of ours
		{tested(theirs, one, 1<<61, 1<<61, lockWrite), []uint64{41, lastByte, lockRead, 0}},
		{tested(theirs, one, 1<<61, 1<<61, lockRead), []uint64{0, 0, lockNone, 0}},
		{tested(file, one, 15, 15, lockWrite), []uint64{0, 0, lockNone, 0}}, // its own
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Error(diff)
		}
	}

	again.flush(two) // closes a descriptor that it had locked nothing by
	theirs.want(one, 41, 41, lockWrite, 0)
	theirs.want(one, 15, 15, lockWrite, errno.EAGAIN)
	again.flush(one) // also what it had locked by the first one
	theirs.want(one, 15, 15, lockWrite, 0)
	onHost(16, nil)
	file.want(two, 16, 16, lockRead, errno.EAGAIN)
	host.Close() // and so the host's lock ends
	file.want(two, 16, 16, lockWrite, 0)
	file.release() // without a flush
	theirs.gets(one, 16, 16, lockWrite)
	theirs.want(one, 1<<62, 1<<62, lockWrite, errno.EAGAIN) // which the third has
	g.conn.Close()
	theirs.gets(one, 1<<62, 1<<62, lockWrite)

	git := other.lookup(other.lookup(rootID, ".git"), "config")
	number, reply := other.call(opOpen, git, body.U32(0).U32(0))
	if number != 0 {
		t.Fatal(number)
	}
	lockedFile{other, git, reply.u64()}.want(one, 0, 0, lockRead, errno.EROFS)
	fixed := &lockingGuest{&rawClient{t: t, conn: serve(t, Config{Dir: dir, ReadOnly: true})}}
	if got := fixed.errno(opInit, 0, fusetest.InitBody().U32(flagHostDir|flagHostLocks)); got != 0 {
		t.Fatal(got)
	}
	readOnly := fixed.openFile("file", 0)
	readOnly.want(one, 0, 0, lockRead, errno.ENOSYS)
	if got := fixed.errno(opFlush, readOnly.node, body.U64(readOnly.handle).U64(0).U64(1)); got != errno.ENOSYS {
		t.Errorf("a flush without locks: %v", got)
	}
}

// TestRangeLockWaits has programs wait for a lock of a part of a file: until it is given up, or a signal comes.
func TestRangeLockWaits(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	g, other := attachLocking(t, Config{Dir: dir}), attachLocking(t, Config{Dir: dir})
	file, theirs := g.openFile("file", 2), other.openFile("file", 2)
	file.want(1, 0, lastByte, lockWrite, 0)
	wait := func(unique uint64) {
		other.send(fusetest.Frame(opSetlkw, unique, theirs.node, rangeBody(theirs.handle, 1, 3, 5, lockWrite)))
	}
	ended := func(unique uint64, want errno.Errno) {
		t.Helper()
		if got, number, _ := other.receive(); got != unique || number != want {
			t.Errorf("request %d: %v, want %d: %v", got, number, unique, want)
		}
	}
	wait(11)
	other.send(fusetest.Frame(opInterrupt, 5, 0, body.U64(11)))
	ended(11, errno.EINTR)
	wait(13)
	file.flush(1)
	ended(13, 0)
	file.want(1, 5, 5, lockRead, errno.EAGAIN)
}

// TestRangeLockFlags has a guest learn with a lock whether what it has of the contents is right.
func TestRangeLockFlags(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	writeFile(t, path, "old")
	time.Sleep(100 * time.Millisecond) // a few steps of the clock of files
	g := attachLocking(t, Config{Dir: dir})
	file := g.openFile("file", 2)
	lock := func(kind, lockFlags, want uint32) {
		t.Helper()
		request := body.U64(file.handle).U64(1).U64(0).U64(9).U32(kind).U32(1).U32(lockFlags).U32(0)
		number, reply := g.call(opSetlk, file.node, request)
		if number != 0 {
			t.Fatal(number)
		}
		if kind == lockNone {
			if len(reply.rest) != 0 {
				t.Errorf("a reply of %d bytes", len(reply.rest))
			}
			return
		}
		if flags := reply.u32(); flags != want || reply.end() != nil {
			t.Errorf("kind %d: flags %x, want %x", kind, flags, want)
		}
	}
	for _, lockFlags := range []uint32{0, lockIsFlock} {
		lock(lockRead, lockFlags, openKeepCache)
		lock(lockNone, lockFlags, 0)
		writeFile(t, path, "new contents")
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)); err != nil { // it has just changed until then
			t.Fatal(err)
		}
		lock(lockRead, lockFlags, 0)
		lock(lockWrite, lockFlags, 0) // what has just changed may change again in the same step of the clock
		time.Sleep(1100 * time.Millisecond)
		lock(lockWrite, lockFlags, 0) // and may have before the last look
		lock(lockRead, lockFlags, openKeepCache)
		lock(lockNone, lockFlags, 0)
	}
}

// TestRangeLocksAreBounded has a guest lock as many ranges as it may, and then as many open files as it may for programs that inherit one.
func TestRangeLocksAreBounded(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	g := attachLocking(t, Config{Dir: dir, MaxOpen: 10})
	file := g.openFile("file", 2)
	for i := range uint64(maxRangeLocks - 1) {
		file.want(1, 2*i, 2*i, lockWrite, 0)
	}
	const big = 1 << 40
	file.want(1, big, big+100, lockWrite, 0)
	file.want(1, big+200, big+200, lockWrite, errno.ENOLCK)
	file.want(1, big+50, big+50, lockNone, errno.ENOLCK) // which would leave two
	file.want(1, 0, big, lockWrite, 0)                   // which leaves two of all
	file.want(1, big+200, big+200, lockWrite, 0)
	for program := range uint64(9) {
		file.want(2+program, big+300+program, big+300+program, lockWrite, 0)
	}
	file.want(11, big+400, big+400, lockWrite, errno.ENOLCK)
	file.flush(3)
	file.want(11, big+400, big+400, lockWrite, 0)
	if err := os.Remove(filepath.Join(dir, "file")); err != nil {
		t.Fatal(err)
	}
	file.flush(4)
	file.want(12, big+500, big+500, lockWrite, errno.ENOLCK) // it could not be opened again
	file.want(1, big+600, big+600, lockWrite, 0)
}
