package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"time"
)

// imageTime bounds what prepareImage does in the guest, which takes some milliseconds.
const imageTime = 5 * time.Second

// prepareImage does in a guest that has been configured what a container of its image may expect: the directories of VOLUME exist, and apk
// asks the mirror that this host is configured with. What the guest refuses is only logged: its commands find out.
func (v *VM) prepareImage(ctx context.Context) {
	mirror := v.resources.store.AlpineMirror()
	if len(v.image.Volumes) == 0 && mirror == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, imageTime)
	defer cancel()
	files := v.Files()
	for _, volume := range v.image.Volumes {
		if err := files.MkdirAll(ctx, path.Join("/", volume), 0o755); err != nil {
			v.config.Logger.Warn("make a directory of the image (VOLUME)", "directory", volume, "error", err)
		}
	}
	if mirror == "" {
		return
	}
	if err := setAlpineMirror(ctx, files, mirror); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.config.Logger.Warn("have apk ask the mirror", "error", err)
	}
}

const (
	alpineRepositories    = "/etc/apk/repositories"
	maxAlpineRepositories = 64 << 10 // bytes
)

// alpineServer is what the repositories of Alpine's images begin with.
var alpineServer = regexp.MustCompile(`(?m)^https?://dl-cdn\.alpinelinux\.org/alpine/`)

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
	replaced := alpineServer.ReplaceAllLiteral(list.Bytes(), []byte(mirror+"/"))
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
