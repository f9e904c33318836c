package mount

import (
	"errors"
	"os"
	"strings"

	"agentvm/internal/errno"
)

const unlinkDir = 0x200 // AT_REMOVEDIR

// made runs a call that makes a name in a directory and encodes the qid of what is there afterwards.
func (c *session) made(q *request, dir *node, name string, call func(path string) error) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := c.makePath(dir, name)
	if err != nil {
		return err
	}
	if err := call(path); err != nil {
		return err
	}
	a, err := c.server.lstat(path)
	if err != nil {
		return err
	}
	c.server.noteMade(path)
	q.out.qid(a.qid)
	return nil
}

// mkdir answers Tmkdir: dfid[4] name[s] mode[4] gid[4].
func (c *session) mkdir(q *request) error {
	id, name, mode := q.in.u32(), q.in.str(), q.in.u32()
	q.in.u32() // gid
	dir, err := c.dir(q, id, name)
	if err != nil {
		return err
	}
	return c.made(q, dir, name, func(path string) error {
		return c.server.mkdir(path, hostMode(mode))
	})
}

// symlink answers Tsymlink: dfid[4] name[s] target[s] gid[4]. The target is only text here: whoever resolves it does so in
// their own tree, and this server never does.
func (c *session) symlink(q *request) error {
	id, name, target := q.in.u32(), q.in.str(), q.in.str()
	q.in.u32() // gid
	dir, err := c.dir(q, id, name)
	switch {
	case err != nil:
		return err
	case target == "":
		return errno.ENOENT
	case len(target) > maxPath:
		return errno.ENAMETOOLONG
	case strings.Contains(target, "\x00"):
		return errno.EINVAL
	}
	return c.made(q, dir, name, func(path string) error {
		if err := c.server.masks.refusesLink(path); err != nil {
			return err
		}
		if err := c.server.protectsPlace(path, false); err != nil {
			return err
		}
		return c.server.symlink(target, path)
	})
}

// mknod answers Tmknod: dfid[4] name[s] mode[4] major[4] minor[4] gid[4]. Only regular files: a host has no use for a
// guest's devices, and a FIFO or socket would make host programs hang.
func (c *session) mknod(q *request) error {
	id, name, mode := q.in.u32(), q.in.str(), q.in.u32()
	q.in.take(4 + 4 + 4)
	dir, err := c.dir(q, id, name)
	if err != nil {
		return err
	}
	if kind := mode & modeTypeMask; kind != modeRegular && kind != 0 {
		return errno.EPERM
	}
	return c.made(q, dir, name, func(path string) error {
		file, err := c.server.openRegular(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, hostMode(mode).Perm())
		if err != nil {
			return err
		}
		return file.Close()
	})
}

// link answers Tlink: dfid[4] fid[4] name[s]. The existing name is a fid's, so it is inside the root, and of a
// symbolic link it is the link itself.
func (c *session) link(q *request) error {
	dirID, id, name := q.in.u32(), q.in.u32(), q.in.str()
	dir, err := c.dir(q, dirID, name)
	if err != nil {
		return err
	}
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	oldPath, err := f.node.path()
	if err != nil {
		return err
	}
	newPath, err := dir.childPath(name)
	if err != nil {
		return err
	}
	if err := errors.Join(c.server.masks.hides(oldPath), c.server.masks.refusesLink(newPath)); err != nil {
		return err
	}
	if err := errors.Join(c.server.protects(oldPath), c.server.protects(newPath)); err != nil {
		return err
	}
	a, err := c.server.lstat(oldPath)
	if err != nil {
		return err
	}
	if err := c.server.protectsPlace(newPath, a.isRegular()); err != nil {
		return err
	}
	if err := c.server.link(oldPath, newPath); err != nil {
		return err
	}
	c.server.noteMade(newPath)
	return nil
}

// rename answers Trename: fid[4] dfid[4] name[s].
func (c *session) rename(q *request) error {
	id, dirID, name := q.in.u32(), q.in.u32(), q.in.str()
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	dir, err := c.dir(q, dirID, name)
	if err != nil {
		return err
	}
	c.tree.names.Lock()
	defer c.tree.names.Unlock()
	switch {
	case f.node.parent == nil:
		return errno.EBUSY
	case f.node.gone:
		return errno.ENOENT
	}
	return c.move(f.node.parent, f.node.name, dir, name)
}

// renameat answers Trenameat: olddirfid[4] oldname[s] newdirfid[4] newname[s].
func (c *session) renameat(q *request) error {
	oldID, oldName := q.in.u32(), q.in.str()
	newID, newName := q.in.u32(), q.in.str()
	oldDir, err := c.dir(q, oldID, oldName)
	if err != nil {
		return err
	}
	newDir, err := c.dir(q, newID, newName)
	if err != nil {
		return err
	}
	c.tree.names.Lock()
	defer c.tree.names.Unlock()
	return c.move(oldDir, oldName, newDir, newName)
}

// move renames on the host and then in the tree. The caller holds tree.names for writing.
func (c *session) move(oldDir *node, oldName string, newDir *node, newName string) error {
	oldPath, err := oldDir.childPath(oldName)
	if err != nil {
		return err
	}
	newPath, err := newDir.childPath(newName)
	if err != nil {
		return err
	}
	masks := c.server.masks // a directory moves with all below it
	if err := errors.Join(masks.hides(oldPath), masks.refusesLink(oldPath), masks.refusesLink(newPath)); err != nil {
		return err
	}
	keeps := c.server.keepsContent(oldPath, newPath)
	if !keeps {
		if err := c.server.protectsMove(oldPath, newPath); err != nil {
			return err
		}
	}
	moved := c.tree.lookup(oldDir, oldName)
	if moved != nil && newDir.below(moved) {
		return errno.EINVAL // the host says so too, unless its tree changed meanwhile; ours must not become a ring
	}
	same := c.server.same(oldPath, newPath)
	if same {
		return c.server.rename(oldPath, newPath) // two links to one file: rename leaves both
	}
	if keeps {
		if err := c.server.unlink(oldPath, false); err != nil {
			return err
		}
	} else {
		replaced, missing := c.server.lstat(newPath)
		if err := c.server.rename(oldPath, newPath); err != nil {
			return err
		}
		if missing == nil {
			c.server.forgetMade(replaced)
		}
		c.server.noteMade(newPath)
	}
	c.tree.remove(newDir, newName)
	if moved != nil {
		c.tree.move(moved, newDir, newName)
	}
	return nil
}

// unlinkat answers Tunlinkat: dirfid[4] name[s] flags[4].
func (c *session) unlinkat(q *request) error {
	id, name, flags := q.in.u32(), q.in.str(), q.in.u32()
	dir, err := c.dir(q, id, name)
	if err != nil {
		return err
	}
	if flags&^unlinkDir != 0 {
		return errno.EINVAL
	}
	c.tree.names.Lock()
	defer c.tree.names.Unlock()
	return c.unlink(dir, name, func(a attr) error {
		switch {
		case a.isDir() && flags&unlinkDir == 0:
			return errno.EISDIR
		case !a.isDir() && flags&unlinkDir != 0:
			return errno.ENOTDIR
		}
		return nil
	})
}

// remove answers Tremove: fid[4]. The fid is clunked even when it fails.
func (c *session) remove(q *request) error {
	if len(q.in.rest) != 4 {
		return errno.EINVAL
	}
	if err := c.clunk(q); err != nil {
		return err
	}
	n := q.held[0].node
	c.tree.names.Lock()
	defer c.tree.names.Unlock()
	switch {
	case n.parent == nil:
		return errno.EBUSY
	case n.gone:
		return errno.ENOENT
	}
	return c.unlink(n.parent, n.name, func(attr) error { return nil })
}

// unlink removes a name, and marks its node as gone so that its fids keep to their open files. The caller holds tree.names
// for writing.
func (c *session) unlink(dir *node, name string, check func(attr) error) error {
	path, err := c.seePath(dir, name)
	if err != nil {
		return err
	}
	if err := errors.Join(c.server.masks.refusesChange(path), c.server.protects(path)); err != nil {
		return err
	}
	a, err := c.server.lstat(path)
	if err != nil {
		return err
	}
	if err := check(a); err != nil {
		return err
	}
	if err := c.server.unlink(path, a.isDir()); err != nil {
		return err
	}
	c.server.forgetMade(a)
	c.tree.remove(dir, name)
	return nil
}
