package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// opener returns the desktop's command that opens a link.
func opener(system string) []string {
	switch system {
	case "darwin":
		return []string{"open"}
	case "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	return []string{"xdg-open"}
}

// openerTime is how long browse waits for an opener to fail. An opener that runs for longer is the browser itself, as on a host without a
// desktop.
const openerTime = time.Second

// browse has the desktop open a link, which is made of letters, digits, dots, slashes and colons. It does not wait for a browser to
// end: within the time wait it notices whether the opener fails. The opener gets none of this program's streams, which it would keep open.
func browse(ctx context.Context, opener []string, url string, wait time.Duration) error {
	command := exec.Command(opener[0], append(opener[1:], url)...) //nolint:noctx // it outlives this program
	err := command.Start()
	if err == nil {
		ended := make(chan error, 1)
		go func() { ended <- command.Wait() }()
		select {
		case err = <-ended:
		case <-time.After(wait):
		case <-ctx.Done():
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
