package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"sync"
	"time"
)

// imageTime bounds what prepareImage does in the guest, which takes some milliseconds.
const imageTime = 5 * time.Second

// directories are those of the guest that a container of its image may expect, and the working directory: the guest makes what is missing.
func (v *VM) directories() (list []string) {
	for _, dir := range append(slices.Clone(v.image.Volumes), cmp.Or(v.config.WorkingDir, v.image.WorkingDir)) {
		if dir = path.Join(defaultDir, dir); dir != defaultDir {
			list = append(list, dir)
		}
	}
	return list
}

// workingDir is where a command starts that asks for dir, or for none when that is empty.
func (v *VM) workingDir(dir string) string {
	if dir != "" {
		return dir
	}
	return path.Join(defaultDir, cmp.Or(v.config.WorkingDir, v.image.WorkingDir))
}

// prepareImage has apk, in a guest that has been configured, ask the mirror that this host is configured with. What the guest refuses is
// only logged: its commands find out.
func (v *VM) prepareImage(ctx context.Context) {
	mirror := v.resources.store.AlpineMirror()
	if mirror == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	if err := setAlpineMirror(ctx, v.Files(), mirror); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.config.Logger.Warn("have apk ask the mirror", "error", err)
	}
}

const (
	alpineRepositories    = "/etc/apk/repositories"
	maxAlpineRepositories = 64 << 10 // bytes
)

// alpineServer is what the repositories of Alpine's images begin with.
var alpineServer = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^https?://dl-cdn\.alpinelinux\.org/alpine/`) })

// setAlpineMirror replaces Alpine's own server in the guest's list of repositories. Repositories of others stay.
func setAlpineMirror(ctx context.Context, files *Files, mirror string) error {
	info, err := files.Stat(ctx, alpineRepositories)
	if err != nil {
		return err
	}
	if !info.Mode.IsRegular() || info.Size > maxAlpineRepositories {
		return fmt.Errorf("%s is no list of repositories", alpineRepositories)
	}
	var list limitedBuffer
	if _, err := files.ReadTo(ctx, alpineRepositories, &list); err != nil {
		return err
	}
	replaced := alpineServer().ReplaceAllLiteral(list.Bytes(), []byte(mirror+"/"))
	if bytes.Equal(replaced, list.Bytes()) {
		return nil
	}
	return files.WriteFile(ctx, alpineRepositories, replaced, info.Mode.Perm())
}

// limitedBuffer takes as much as a list of repositories may have, whatever the guest said of its size.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAlpineRepositories {
		return 0, fmt.Errorf("more than %d bytes", maxAlpineRepositories)
	}
	return b.Buffer.Write(p)
}
