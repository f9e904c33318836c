package mount

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/fusetest"
)

func setBody(name, value string, flags uint32) fusetest.Body {
	return append(body.U32(uint32(len(value))).U32(flags).Str(name), value...)
}

func TestExtendedAttributes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"file", ".git/config", "hidden"} {
		writeFile(t, filepath.Join(dir, name), "")
	}
	if err := os.Symlink("file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	c := attachEvents(t, Config{Dir: dir, Protected: DefaultProtected, Masks: []string{"hidden"}})
	file, link, config := c.lookup(rootID, "file"), c.lookup(rootID, "link"), c.lookup(c.lookup(rootID, ".git"), "config")
	if got := c.errno(opSetxattr, file, setBody("user.one", "first", 0)); got == errno.EOPNOTSUPP {
		t.Skip("the file system has no extended attributes")
	} else if got != 0 {
		t.Fatal(got)
	}
	large := strings.Repeat("x", 3000)
	const create, replace = 1, 2
	for _, tc := range []struct {
		what string
		op   uint32
		node uint64
		body fusetest.Body
		want errno.Errno
	}{
		{"a large one", opSetxattr, file, setBody("user.two", large, create), 0},
		{"one that is there", opSetxattr, file, setBody("user.one", "", create), errno.EEXIST},
		{"one that is not", opSetxattr, file, setBody("user.three", "", replace), errno.ENODATA},
		{"a trusted one", opSetxattr, file, setBody("trusted.x", "", 0), errno.EOPNOTSUPP},
		{"a capability", opSetxattr, file, setBody("security.capability", "", 0), errno.EOPNOTSUPP},
		{"an ACL", opSetxattr, file, setBody("system.posix_acl_access", "", 0), errno.EOPNOTSUPP},
		{"without a name", opSetxattr, file, setBody("user.", "", 0), errno.EINVAL},
		{"a long name", opSetxattr, file, setBody("user."+strings.Repeat("x", 251), "", 0), errno.ERANGE},
		{"a long value", opSetxattr, file, setBody("user.x", strings.Repeat("x", maxAttribute+1), 0), errno.E2BIG},
		{"fewer bytes than said", opSetxattr, file, body.U32(9).U32(0).Str("user.x"), errno.EINVAL},
		{"of a link", opSetxattr, link, setBody("user.x", "", 0), errno.EPERM},
		{"of what is protected", opSetxattr, config, setBody("user.x", "", 0), errno.EROFS},
		{"remove of what is protected", opRemovexattr, config, body.Str("user.x"), errno.EROFS},
		{"remove a trusted one", opRemovexattr, file, body.Str("trusted.x"), errno.EOPNOTSUPP},
		{"remove what is not there", opRemovexattr, file, body.Str("user.x"), errno.ENODATA},
		{"read what is not there", opGetxattr, file, body.U32(10).U32(0).Str("user.x"), errno.ENODATA},
		{"read of a link", opGetxattr, link, body.U32(10).U32(0).Str("user.x"), errno.ENODATA},
		{"read into too little", opGetxattr, file, body.U32(4).U32(0).Str("user.one"), errno.ERANGE},
		{"list into too little", opListxattr, file, body.U32(4).U32(0), errno.ERANGE},
	} {
		if got := c.errno(tc.op, tc.node, tc.body); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.what, got, tc.want)
		}
	}
	if number, reply := c.call(opGetxattr, file, body.U32(0).U32(0).Str("user.two")); number != 0 || reply.u32() != uint32(len(large)) {
		t.Errorf("the size: %v", number)
	}
	if number, reply := c.call(opGetxattr, file, body.U32(4096).U32(0).Str("user.two")); number != 0 || string(reply.rest) != large {
		t.Errorf("the value: %v, %d bytes", number, len(reply.rest))
	}
	if number, reply := c.call(opListxattr, file, body.U32(100).U32(0)); number != 0 || !bytes.Equal(reply.rest, []byte("user.one\x00user.two\x00")) {
		t.Errorf("the list: %v, %q", number, reply.rest)
	}
	if got := c.errno(opRemovexattr, file, body.Str("user.two")); got != 0 {
		t.Error(got)
	}
	// The guest does not ask for those of a file that has none.
	writeFile(t, filepath.Join(dir, "sub/plain"), "")
	sub := c.lookup(rootID, "sub")
	flags := func(node uint64, name string) uint32 {
		number, reply := c.call(opLookup, node, body.Str(name))
		if number != 0 {
			t.Fatal(number)
		}
		reply.take(entrySize - 4)
		return reply.u32()
	}
	if got := flags(sub, "plain"); got != attrNoXattr {
		t.Errorf("the flags of a file without attributes: %#x", got)
	}
	if got := flags(rootID, "file"); got != 0 {
		t.Errorf("the flags of a file with an attribute: %#x", got)
	}
	fixed := attachEvents(t, Config{Dir: dir, ReadOnly: true})
	file = fixed.lookup(rootID, "file")
	if got := fixed.errno(opSetxattr, file, setBody("user.one", "", 0)); got != errno.EROFS {
		t.Errorf("read-only: %v", got)
	}
	if number, reply := fixed.call(opGetxattr, file, body.U32(100).U32(0).Str("user.one")); number != 0 || string(reply.rest) != "first" {
		t.Errorf("read-only: %v, %q", number, reply.rest)
	}
}

func lockBody(handle uint64, kind uint32) fusetest.Body {
	return body.U64(handle).U64(1).U64(0).U64(1 << 62).U32(kind).U32(1).U32(lockIsFlock).U32(0)
}

// TestLocks has two guests lock one file: what one has the other does not get, and waits for until it is given up, however that comes about.
func TestLocks(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	writeFile(t, filepath.Join(dir, ".git/config"), "")
	config := Config{Dir: dir, Protected: DefaultProtected}
	open := func(c *eventClient, path ...string) (node, handle uint64) {
		t.Helper()
		node = rootID
		for _, name := range path {
			node = c.lookup(node, name)
		}
		handle, number := c.open(opOpen, node)
		if number != 0 {
			t.Fatal(number)
		}
		return node, handle
	}
	one, two := attachEvents(t, config), attachEvents(t, config)
	node, first := open(one, "file")
	_, again := open(one, "file")
	other, second := open(two, "file")
	try := func(c *eventClient, node, handle uint64, kind uint32, want errno.Errno) {
		t.Helper()
		if got := c.errno(opSetlk, node, lockBody(handle, kind)); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	try(one, node, first, lockRead, 0)
	try(two, other, second, lockRead, 0)
	try(two, other, second, lockWrite, errno.EAGAIN)
	try(two, other, second, lockNone, 0)
	try(one, node, first, lockWrite, 0)
	try(one, node, again, lockWrite, errno.EAGAIN) // two open files of one guest
	try(two, other, second, lockRead, errno.EAGAIN)
	try(one, node, first, 7, errno.EINVAL)
	try(one, node, 99, lockRead, errno.EBADF)
	git, protected := open(one, ".git", "config")
	try(one, git, protected, lockWrite, errno.EROFS)

	wait := func(unique uint64) { two.send(fusetest.Frame(opSetlkw, unique, other, lockBody(second, lockWrite))) }
	ended := func(unique uint64, want errno.Errno) {
		t.Helper()
		if got, number, _ := two.receive(); got != unique || number != want {
			t.Errorf("request %d: %v, want %d: %v", got, number, unique, want)
		}
	}
	wait(11)
	if got := two.errno(opGetattr, other, make(fusetest.Body, 16)); got != 0 { // meanwhile other requests are answered
		t.Errorf("beside a request that waits: %v", got)
	}
	two.send(fusetest.Frame(opInterrupt, 5, 0, body.U64(11)))
	ended(11, errno.EINTR)
	two.send(fusetest.Frame(opInterrupt, 5, 0, body.U64(13))) // it overtakes its request
	wait(13)
	ended(13, errno.EINTR)
	wait(15)
	try(one, node, first, lockNone, 0)
	ended(15, 0)
	try(one, node, first, lockRead, errno.EAGAIN)
	two.conn.Close() // a guest that ends gives up its locks
	for deadline := time.Now().Add(10 * time.Second); one.errno(opSetlk, node, lockBody(first, lockWrite)) != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the lock of a guest that has ended stays")
		}
		time.Sleep(time.Millisecond)
	}
	if got := one.errno(opRelease, node, body.U64(first).U64(0).U64(0)); got != 0 {
		t.Error(got)
	}
	try(one, node, again, lockWrite, 0)

	// In a mount that the guest cannot change its locks are its own.
	fixed := attachEvents(t, Config{Dir: dir, ReadOnly: true})
	node, handle := open(fixed, "file")
	try(fixed, node, handle, lockWrite, errno.ENOSYS)
}

// TestLockWaitsAreBounded has a guest wait more often than it may, and then end.
func TestLockWaitsAreBounded(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	c := attachEvents(t, Config{Dir: dir})
	node := c.lookup(rootID, "file")
	var handles [2]uint64
	for i := range handles {
		handles[i], _ = c.open(opOpen, node)
	}
	if got := c.errno(opSetlk, node, lockBody(handles[0], lockWrite)); got != 0 {
		t.Fatal(got)
	}
	for i := range maxLockWaits {
		c.send(fusetest.Frame(opSetlkw, uint64(1000+i), node, lockBody(handles[1], lockWrite)))
	}
	if got := c.errno(opSetlkw, node, lockBody(handles[1], lockWrite)); got != errno.ENOLCK {
		t.Errorf("one too many: %v", got)
	}
}
