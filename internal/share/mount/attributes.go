package mount

import (
	"strings"

	"agentvm/internal/host/errno"
)

// The guest has the host's extended attributes user.*, which mean nothing to a kernel, where the host's file system has them. The others are for
// the host's kernel and its programs.
const (
	userAttribute = "user."
	// maxAttribute and maxAttributes are Linux's limits, in bytes, of a value and of a list of names; a name has at most 255.
	maxAttribute  = 64 << 10
	maxAttributes = 64 << 10
)

func checkAttribute(name string) error {
	switch {
	case !strings.HasPrefix(name, userAttribute):
		return errno.EOPNOTSUPP
	case len(name) == len(userAttribute):
		return errno.EINVAL
	case len(name) > 255:
		return errno.ERANGE
	}
	return nil
}

// attributed finds what an extended attribute is of: a regular file or a directory. names must be held.
func (c *session) attributed(n *node) (path string, a attr, err error) {
	path, a, err = c.find(n)
	if err == nil && !a.isRegular() && !a.isDir() {
		err = errno.EPERM // as on all file systems of Linux
	}
	return path, a, err
}

// getxattr answers FUSE_GETXATTR: size[4] padding[4] name\0. Below an overlay there is a file's Base alone: that of the last open, since the guest
// copies what it opens.
func (c *session) getxattr(q *request) error {
	if !c.server.config.Bases && !c.hostDir {
		return errno.ENOSYS
	}
	size := q.in.u32()
	q.in.take(4)
	name := q.in.str()
	if err := q.in.end(); err != nil {
		return err
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	if c.server.config.Bases {
		return c.getBase(q, size, name)
	}
	if err := checkAttribute(name); err != nil {
		return err
	}
	path, _, err := c.attributed(q.node)
	if err != nil {
		return noneOf(err)
	}
	value, err := c.server.getAttribute(path, name)
	if err != nil {
		return err
	}
	return c.replyAttribute(q, size, value)
}

// saysPlain reports whether the guest takes from us which files have no attributes. Below an overlay each file has its Base.
func (c *session) saysPlain() bool { return c.hostDir && !c.server.config.Bases }

// noneOf is the error of a file that has no attributes at all.
func noneOf(err error) error {
	if errno.In(err) == errno.EPERM {
		return errno.ENODATA
	}
	return err
}

// getBase: names must be held.
func (c *session) getBase(q *request, size uint32, name string) error {
	if name != BaseAttribute {
		return errno.ENODATA
	}
	path, a, err := c.find(q.node)
	if err != nil {
		return err
	}
	base := baseOf(a, path)
	if opened := c.tree.lastOpened(q.node); opened != (version{}) {
		base.Size, base.MTime, base.CTime = opened.size, opened.mtime, opened.ctime
	}
	c.tree.noteCopied(q.node)
	return c.replyAttribute(q, size, []byte(base.String()))
}

// listxattr answers FUSE_LISTXATTR: size[4] padding[4].
func (c *session) listxattr(q *request) error {
	if !c.server.config.Bases && !c.hostDir {
		return errno.ENOSYS
	}
	size := q.in.u32()
	q.in.take(4)
	if err := q.in.end(); err != nil {
		return err
	}
	if c.server.config.Bases {
		return c.replyAttribute(q, size, []byte(BaseAttribute+"\x00"))
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, _, err := c.attributed(q.node)
	if errno.In(err) == errno.EPERM {
		return c.replyAttribute(q, size, nil)
	}
	if err != nil {
		return err
	}
	all, err := c.server.listAttributes(path)
	if err != nil {
		return err
	}
	var list []byte
	for name := range strings.SplitSeq(string(all), "\x00") {
		if checkAttribute(name) == nil {
			list = append(append(list, name...), 0)
		}
	}
	return c.replyAttribute(q, size, list)
}

// replyAttribute appends a value if it fits, or for size 0 a struct fuse_getxattr_out: size[4] padding[4].
func (c *session) replyAttribute(q *request, size uint32, value []byte) error {
	switch {
	case size == 0:
		q.out.u32(uint32(len(value)))
		q.out.u32(0)
	case int(size) < len(value):
		return errno.ERANGE
	default:
		c.reserve(q, replyHeader+len(value))
		q.out.buf = append(q.out.buf, value...)
	}
	return nil
}

// setxattr answers FUSE_SETXATTR: size[4] flags[4] name\0 value[size]; the flags are XATTR_CREATE and XATTR_REPLACE.
func (c *session) setxattr(q *request) error {
	size, flags := q.in.u32(), q.in.u32()
	name := q.in.str()
	if size > maxAttribute {
		return errno.E2BIG
	}
	value := q.in.take(int(size))
	return c.changeAttribute(q, name, func(path string) error { return c.server.setAttribute(path, name, value, int(flags&3)) })
}

// removexattr answers FUSE_REMOVEXATTR: name\0.
func (c *session) removexattr(q *request) error {
	name := q.in.str()
	return c.changeAttribute(q, name, func(path string) error { return c.server.removeAttribute(path, name) })
}

func (c *session) changeAttribute(q *request, name string, call func(path string) error) error {
	if !c.hostDir {
		return errno.ENOSYS
	}
	if err := q.in.end(); err != nil {
		return err
	}
	if err := checkAttribute(name); err != nil {
		return err
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, _, err := c.attributed(q.node)
	if err != nil {
		return err
	}
	if err := c.server.masks.refusesChange(path); err != nil {
		return err
	}
	if err := c.protects(q.node); err != nil {
		return err
	}
	c.tree.beginChange(q.node)
	err = call(path)
	a, after := c.server.lstat(path)
	c.tree.endChange(q.node, a, after == nil)
	return err
}
