package mount

import (
	"errors"
	"os"

	"agentvm/internal/host/errno"
)

// made runs a call that makes a name in the request's directory, and replies with what is there afterwards. What is not a link gets its mode, to which
// the guest's umask has been applied and the host's must not be.
func (c *session) made(q *request, name string, mode uint32, call func(path string) error) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := c.makePath(q.node, name)
	if err != nil {
		return err
	}
	expected := c.events.expect(q.node, name, eventMade)
	noteMade := c.server.making(path)
	if err = call(path); err != nil {
		expected(err, identity{})
		return err
	}
	a, err := c.server.lstat(path)
	expected(err, a.identity())
	if err != nil {
		return err
	}
	if err := noteMade(); err != nil {
		return errors.Join(err, c.server.unlink(path, a.isDir()))
	}
	if !a.isSymlink() && !a.hasMode(mode) && c.server.chmod(path, hostMode(mode)) == nil { // some file systems have no modes
		if a, err = c.server.lstat(path); err != nil {
			return err
		}
	}
	c.server.noteInstruction(path)
	return c.replyMade(q, name, a)
}

// replyMade is replyEntry for what the guest has made. names must be held.
func (c *session) replyMade(q *request, name string, a attr) error {
	n, err := c.tree.lookedUp(q.node, name, a)
	if err != nil {
		return err
	}
	c.tree.made(n, a)
	c.tellEntry(&q.out, q.node, n, a)
	return nil
}

// mkdir answers FUSE_MKDIR: mode[4] umask[4] name\0.
func (c *session) mkdir(q *request) error {
	mode, _ := q.in.u32(), q.in.u32()
	name := q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(name)); err != nil {
		return err
	}
	return c.made(q, name, mode, func(path string) error { return c.server.mkdir(path, hostMode(mode)) })
}

// symlink answers FUSE_SYMLINK: name\0 target\0. The target is only text here: whoever resolves it does so in
// their own tree, and this server never does.
func (c *session) symlink(q *request) error {
	name, target := q.in.str(), q.in.str()
	err := errors.Join(q.in.end(), q.inDir(name))
	switch {
	case err != nil:
		return err
	case target == "":
		return errno.ENOENT
	case len(target) > maxPath:
		return errno.ENAMETOOLONG
	}
	return c.made(q, name, 0, func(path string) error {
		if err := c.server.masks.refusesLink(path); err != nil {
			return err
		}
		if err := c.server.protectsLink(path, target); err != nil {
			return err
		}
		return c.server.symlink(target, path)
	})
}

// mknod answers FUSE_MKNOD: mode[4] rdev[4] umask[4] padding[4] name\0. FIFOs and sockets become what they are: both ends are in the
// guest's kernel, the host has only the name, and this server opens neither. A host program that opens such a FIFO waits, as it does
// at a symbolic link that the guest makes to a terminal. A host has no use for a guest's devices.
func (c *session) mknod(q *request) error {
	mode := q.in.u32()
	q.in.take(4 + 4 + 4)
	name := q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(name)); err != nil {
		return err
	}
	kind := mode & modeTypeMask
	switch kind {
	case 0, modeRegular, modeFIFO, modeSocket:
	default:
		return errno.EPERM
	}
	return c.made(q, name, mode, func(path string) error {
		if kind == modeFIFO || kind == modeSocket {
			if err := c.server.protectsPlace(path, false); err != nil {
				return err
			}
			return c.server.mknod(path, kind|mode&0o777)
		}
		file, _, err := c.server.openRegular(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, hostMode(mode).Perm())
		if err != nil {
			return err
		}
		return file.Close()
	})
}

// link answers FUSE_LINK: oldnodeid[8] name\0. The existing name is a node's, so it is inside the root, and of a
// symbolic link it is the link itself.
func (c *session) link(q *request) error {
	id, name := q.in.u64(), q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(name)); err != nil {
		return err
	}
	old, err := c.tree.get(id)
	if err != nil {
		return err
	}
	defer c.tree.release(old)
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	oldPath, a, err := c.find(old)
	if err != nil {
		return err
	}
	newPath, err := q.node.childPath(name)
	if err != nil {
		return err
	}
	if err := errors.Join(c.server.masks.hides(oldPath), c.server.masks.refusesLink(newPath)); err != nil {
		return err
	}
	if err := errors.Join(c.protects(old), c.server.protects(newPath)); err != nil {
		return err
	}
	if err := c.server.protectsPlace(newPath, a.isRegular()); err != nil {
		return err
	}
	if a.isSymlink() {
		target, err := c.server.readTarget(oldPath)
		if err != nil {
			return err
		}
		if err := c.server.protectsLink(newPath, target); err != nil {
			return err
		}
	}
	expected := c.events.expect(q.node, name, eventMade)
	noteMade := c.server.making(newPath)
	if err = c.server.link(oldPath, newPath); err == nil {
		if err = noteMade(); err != nil {
			err = errors.Join(err, c.server.unlink(newPath, false))
		}
	}
	if err == nil {
		a, err = c.server.lstat(newPath)
		c.server.noteInstruction(newPath)
	}
	expected(err, a.identity())
	if err != nil {
		return err
	}
	c.events.attributes(old) // it has one more name, and may change by that
	return c.replyMade(q, name, a)
}

// rename answers FUSE_RENAME: newdir[8] oldname\0 newname\0.
func (c *session) rename(q *request) error {
	id, oldName, newName := q.in.u64(), q.in.str(), q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(oldName), checkName(newName)); err != nil {
		return err
	}
	newDir, err := c.tree.get(id)
	if err != nil {
		return err
	}
	defer c.tree.release(newDir)
	if !newDir.dir.Load() {
		return errno.ENOTDIR
	}
	c.tree.names.Lock()
	defer c.tree.names.Unlock()
	return c.move(q.node, oldName, newDir, newName)
}

// move renames on the host and then in the tree. The caller holds tree.names for writing.
func (c *session) move(oldDir *node, oldName string, newDir *node, newName string) (err error) {
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
	removed, made := c.events.expect(oldDir, oldName, eventRemoved), c.events.expect(newDir, newName, eventMade)
	defer func() {
		a, missing := c.server.lstat(newPath)
		if moved != nil && err == nil && missing == nil {
			c.tree.made(moved, a)
		}
		removed(err, identity{})
		made(err, a.identity())
	}()
	if keeps {
		if err := c.server.unlink(oldPath, false); err != nil {
			return err
		}
		if a, err := c.server.lstat(newPath); err == nil && moved != nil {
			c.tree.setFile(moved, a.identity())
		}
	} else {
		if err := c.server.moveOnHost(oldPath, newPath); err != nil {
			return err
		}
	}
	c.tree.remove(newDir, newName)
	if moved != nil {
		c.tree.move(moved, place{oldDir, oldName}, place{newDir, newName})
	}
	return nil
}

// moveOnHost renames on the host, and undoes that where it turns out to be refused.
func (s *Server) moveOnHost(oldPath, newPath string) error {
	replaced, none := s.lstat(newPath)
	noteMade := s.making(newPath)
	if err := s.rename(oldPath, newPath); err != nil {
		return err
	}
	if none == nil {
		s.forgetMade(replaced)
	}
	a, err := s.lstat(newPath)
	if err == nil {
		err = noteMade()
	}
	if err == nil && a.isDir() {
		err = s.movedProtected(newPath)
	}
	if err != nil {
		s.undoMove(oldPath, newPath)
		return err
	}
	s.noteInstruction(newPath)
	return nil
}

// unlinkFile answers FUSE_UNLINK: name\0.
func (c *session) unlinkFile(q *request) error {
	return c.unlink(q, func(a attr) error {
		if a.isDir() {
			return errno.EISDIR
		}
		return nil
	})
}

// unlinkDir answers FUSE_RMDIR: name\0.
func (c *session) unlinkDir(q *request) error {
	return c.unlink(q, func(a attr) error {
		if !a.isDir() {
			return errno.ENOTDIR
		}
		return nil
	})
}

// unlink removes a name, and marks its node as gone so that it keeps to its open files.
func (c *session) unlink(q *request, check func(attr) error) error {
	name := q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(name)); err != nil {
		return err
	}
	c.tree.names.Lock()
	defer c.tree.names.Unlock()
	path, err := c.seePath(q.node, name)
	if err != nil {
		return err
	}
	if err := errors.Join(c.server.masks.refusesChange(path), c.server.protectsRemoval(path)); err != nil {
		return err
	}
	a, err := c.server.lstat(path)
	if err != nil {
		return err
	}
	if err := check(a); err != nil {
		return err
	}
	expected := c.events.expect(q.node, name, eventRemoved)
	err = c.server.unlink(path, a.isDir())
	expected(err, identity{})
	if err != nil {
		return err
	}
	c.server.forgetMade(a)
	c.tree.remove(q.node, name)
	return nil
}
