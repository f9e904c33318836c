//go:build unix

package private

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"agentvm/internal/host/hostfile"
)

// volumeVariable names the folder where a volume of a container is mounted that has one user. Kubernetes makes an emptyDir root's and lets everyone
// write it, so that its bits say nothing about who is there.
const volumeVariable = "AGENTVM_VOLUME"

func open(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}

// maxLinks bounds the links on one way; it is the kernel's bound.
const maxLinks = 40

// checkWay checks every folder and every link that path leads through, and the file that it leads to.
func checkWay(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	at, rest, links := "/", components(abs), 0
	if err := checkStep(at, len(rest) == 0); err != nil {
		return err
	}
	for len(rest) > 0 {
		next := rest[0]
		rest = rest[1:]
		if next == ".." { // only of a link's target; at is without links
			at = filepath.Dir(at)
			continue
		}
		named := filepath.Join(at, next)
		target, err := os.Readlink(named)
		if err != nil { // no link
			if err := checkStep(named, len(rest) == 0); err != nil {
				return err
			}
			at = named
			continue
		}
		if links++; links > maxLinks {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
		}
		if err := checkStep(named, false); err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(components(target), rest...)
	}
	return nil
}

func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// checkStep checks one file of the way, without following it when it is a link. last reports that it is the end of the way.
func checkStep(path string, last bool) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner := hostfile.Of(info)
	if !trusted(owner.UID) && (last || !ownerIsUnknown(owner.UID)) {
		return foreign(path, owner.UID)
	}
	writable := info.Mode().Perm() & 0o022
	switch {
	case writable == 0 || info.Mode()&fs.ModeSymlink != 0: // the bits of a link mean nothing
		return nil
	case !last && info.Mode()&fs.ModeSticky != 0:
		return nil
	case !last && writable == 0o020 && ownGroup(owner.GID):
		return nil
	case !last && owner.UID == 0 && path == os.Getenv(volumeVariable):
		return nil
	}
	return problem(fmt.Sprintf("%s can be written by others (mode %#o): run chmod go-w on it, or remove it if you did not make it",
		path, info.Mode().Perm()))
}

// checkOpen checks a file that is open.
func checkOpen(path string, info fs.FileInfo) error {
	if uid := hostfile.Of(info).UID; !trusted(uid) {
		return foreign(path, uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return problem(fmt.Sprintf("%s can be written by others (mode %#o): run chmod go-w on it, or remove it if you did not make it",
			path, info.Mode().Perm()))
	}
	return nil
}

// checkSecret checks who may read a file.
func checkSecret(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o077 != 0 {
		return problem(fmt.Sprintf("%s can be read by others (mode %#o): who has read it can do what it is for; remove it, or run chmod 600 on it",
			path, info.Mode().Perm()))
	}
	return nil
}

func foreign(path string, uid uint32) error {
	return problem(fmt.Sprintf("%s belongs to user %d, not to user %d, who runs this: what is in it could be anybody's; use a folder of "+
		"your own (AGENTVM_STORE names one), or change its owner", path, uid, os.Geteuid()))
}

// trusted reports whether a user may decide what this one executes.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// ownGroup reports whether a group is that of a user alone. Systems that give each user such a group give it the user's number, and let
// it write the user's files (umask 002). Members that an administrator has added are trusted.
func ownGroup(gid uint32) bool {
	return gid == uint32(os.Getegid()) && gid == uint32(os.Geteuid())
}
