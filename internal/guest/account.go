//go:build linux

package guest

import (
	"os"
	"strconv"
	"strings"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// account is who a program runs as.
type account struct {
	name, home, shell string
	uid, gid          uint32
	groups            []uint32
}

var root = account{name: "root", home: "/root", shell: "/bin/sh"}

// accounts reads users and groups from the files of the root file system.
type accounts struct {
	passwd, group string // paths
}

// find reads "name", "uid", "name:group" or "uid:gid". An unknown number is fine, an unknown name is not. The empty user
// is root and reads no files, because nearly every exec asks for it.
func (a accounts) find(user string) (account, error) {
	if user == "" {
		return root, nil
	}
	user, group, hasGroup := strings.Cut(user, ":")
	u, err := a.user(user)
	if err != nil {
		return account{}, err
	}
	if hasGroup {
		if u.gid, err = a.gid(group); err != nil {
			return account{}, err
		}
		u.groups = []uint32{u.gid}
		return u, nil
	}
	u.groups = append(a.memberships(u.name), u.gid)
	return u, nil
}

func (a accounts) user(user string) (account, error) {
	number, err := strconv.ParseUint(user, 10, 32)
	isNumber := err == nil
	for _, f := range records(a.passwd, 7) {
		if f[0] != user && !(isNumber && f[2] == user) {
			continue
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		u := account{name: f[0], home: f[5], shell: f[6], uid: uint32(uid), gid: uint32(gid)}
		if u.home == "" {
			u.home = "/"
		}
		if u.shell == "" {
			u.shell = "/bin/sh"
		}
		return u, nil
	}
	if isNumber {
		return account{name: user, home: "/", shell: "/bin/sh", uid: uint32(number)}, nil
	}
	return account{}, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ENOENT, Message: "no user " + strconv.Quote(user) + " in the guest's " + a.passwd}
}

func (a accounts) gid(group string) (uint32, error) {
	if n, err := strconv.ParseUint(group, 10, 32); err == nil {
		return uint32(n), nil
	}
	for _, f := range records(a.group, 4) {
		if n, err := strconv.ParseUint(f[2], 10, 32); err == nil && f[0] == group {
			return uint32(n), nil
		}
	}
	return 0, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.ENOENT, Message: "no group " + strconv.Quote(group) + " in the guest's " + a.group}
}

// memberships lists the groups that name user as a member.
func (a accounts) memberships(user string) (gids []uint32) {
	for _, f := range records(a.group, 4) {
		n, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		for _, member := range strings.Split(f[3], ",") {
			if member == user {
				gids = append(gids, uint32(n))
			}
		}
	}
	return gids
}

// records returns the lines of a colon-separated file that have n fields. A file that cannot be read has none.
func records(path string, n int) (list [][]string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if f := strings.Split(line, ":"); len(f) == n {
			list = append(list, f)
		}
	}
	return list
}
