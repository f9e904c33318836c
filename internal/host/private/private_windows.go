package private

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// Another process that replaces or deletes a file, or looks for viruses in it, shares it again soon.
const (
	openTries = 100
	openPause = 10 * time.Millisecond
)

func open(path string) (f *os.File, err error) {
	for range openTries {
		f, err = os.Open(path)
		if !errors.Is(err, windows.ERROR_SHARING_VIOLATION) {
			break
		}
		time.Sleep(openPause)
	}
	return f, err
}

func checkWay(string) error                 { return nil }
func checkOpen(string, fs.FileInfo) error   { return nil }
func checkSecret(string, fs.FileInfo) error { return nil }
