package mount

import "agentvm/internal/errno"

// attach answers Tattach: fid[4] afid[4] uname[s] aname[s] n_uname[4]. There is one tree and no authentication, so the
// user does not matter and aname can only be the root.
func (c *session) attach(q *request) error {
	id, auth := q.in.u32(), q.in.u32()
	_, aname, _ := q.in.str(), q.in.str(), q.in.u32()
	if err := q.in.end(); err != nil {
		return err
	}
	if auth != noFid {
		return errno.EINVAL
	}
	if aname != "" && aname != "/" {
		return errno.ENOENT
	}
	a, err := c.server.lstat(".")
	if err != nil {
		return err
	}
	f := &fid{node: c.tree.hold(c.tree.root)}
	if err := c.fids.add(id, f); err != nil {
		c.tree.release(f.node)
		return err
	}
	q.out.qid(a.qid)
	return nil
}

// walk answers Twalk: fid[4] newfid[4] nwname[2] nwname*(wname[s]). It is all or nothing: the error of the element
// that failed tells the guest more than a shorter list of qids.
func (c *session) walk(q *request) error {
	id, newID := q.in.u32(), q.in.u32()
	names, err := walkNames(&q.in)
	if err != nil {
		return err
	}
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	n, qids, err := c.descend(f.node, names)
	if err != nil {
		return err
	}
	if err := c.placeFid(q, f, id, newID, &fid{node: n}); err != nil {
		c.tree.release(n)
		return err
	}
	q.out.u16(uint16(len(qids)))
	for _, id := range qids {
		q.out.qid(id)
	}
	return nil
}

// walkNames decodes a list of names. Its length is checked before anything is allocated for it.
func walkNames(in *decoder) ([]string, error) {
	count := int(in.u16())
	if count > maxWalk {
		return nil, errno.EINVAL
	}
	names := make([]string, count)
	for i := range names {
		names[i] = in.str()
	}
	return names, in.end()
}

// placeFid installs what a walk found, at its own number or in place of the fid it started from.
func (c *session) placeFid(q *request, from *fid, id, newID uint32, found *fid) error {
	if newID != id {
		return c.fids.add(newID, found)
	}
	if _, err := from.opened(); err == nil {
		return errno.EBUSY
	}
	if err := c.fids.replace(id, from, found); err != nil {
		return err
	}
	q.held = append(q.held, from) // the table's reference
	return nil
}

// descend walks the names and returns the last node with a reference. Without names it is a copy, which works for
// a removed file too.
func (c *session) descend(n *node, names []string) (*node, []qid, error) {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	n = c.tree.hold(n)
	qids := make([]qid, 0, len(names))
	for _, name := range names {
		next, id, err := c.step(n, name)
		c.tree.release(n)
		if err != nil {
			return nil, nil, err
		}
		n, qids = next, append(qids, id)
	}
	return n, qids, nil
}

// step looks up one name. What is no directory ends the walk, a symbolic link too: the guest follows links in its own tree.
func (c *session) step(dir *node, name string) (*node, qid, error) {
	if err := checkName(name); err != nil {
		return nil, qid{}, err
	}
	if !dir.dir.Load() {
		return nil, qid{}, errno.ENOTDIR
	}
	path, err := c.seePath(dir, name)
	if err != nil {
		return nil, qid{}, err
	}
	a, err := c.server.lstat(path)
	if err != nil {
		return nil, qid{}, err
	}
	n, err := c.tree.child(dir, name)
	if err == nil {
		n.dir.Store(a.isDir())
	}
	return n, a.qid, err
}
