package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"agentvm/images"
	"agentvm/internal/host/private"
)

// opener returns the desktop's command that opens a file.
func opener(system string) []string {
	switch system {
	case "darwin":
		return []string{"open"}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	return []string{"xdg-open"}
}

const (
	// openerTime is how long browse waits for an opener to fail. An opener that runs for longer is the browser itself, as on a host without a
	// desktop.
	openerTime = time.Second
	// redirectTime is how long a browser has to read the file with a link.
	redirectTime = 15 * time.Second
)

// redirectPage leads to a link, and tells its server nothing about the file.
const redirectPage = `<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>agentvm</title>
<meta http-equiv="refresh" content="0; url=%[1]s"><a href="%[1]s">Continue</a>
`

// linkFolder is the folder of the store for files with links.
func linkFolder() (string, error) {
	dir, err := images.DefaultDir()
	return filepath.Join(dir, "links"), err
}

// browse has the desktop open a link, which may be a secret: command lines are for all users of the host to read, so that the opener gets the name
// of a file of this user alone, which leads on. browse returns when keep is over or ctx ends, and removes the file; within the time wait it notices
// whether the opener fails. The opener gets none of this program's streams, which it would keep open.
func browse(ctx context.Context, opener []string, folder, link string, wait, keep time.Duration) error {
	path, err := redirectFile(folder, link, keep)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	command := exec.Command(opener[0], append(opener[1:], path)...) //nolint:noctx // it outlives this program
	err = command.Start()
	if err == nil {
		ended := make(chan error, 1)
		go func() { ended <- command.Wait() }()
		over := time.After(keep)
		select {
		case err = <-ended:
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if err == nil {
			select {
			case <-over:
			case <-ctx.Done():
			}
		}
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%s is not installed: open the link, which is above, by hand", opener[0])
	case err != nil:
		return fmt.Errorf("no browser has opened the link, which is above: %s: %w", opener[0], err)
	}
	return nil
}

// redirectFile makes the file, and removes those of programs that were killed.
func redirectFile(folder, link string, keep time.Duration) (path string, err error) {
	if err := private.MakeFolder(folder); err != nil {
		return "", err
	}
	old, err := filepath.Glob(filepath.Join(folder, "open-*.html"))
	if err != nil {
		return "", err
	}
	for _, path := range old {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > keep {
			_ = os.Remove(path)
		}
	}
	file, err := os.CreateTemp(folder, "open-*.html") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(file, redirectPage, html.EscapeString(link))
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}
