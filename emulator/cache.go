package emulator

import (
	"fmt"
	"os"
	"runtime"
)

// makePrivateDir makes dir for this user alone, or checks that it is: whoever can write to it can run code as us.
func makePrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be written by others (mode %#o): chmod 700 it or name another folder", dir, info.Mode().Perm())
	}
	return nil
}
