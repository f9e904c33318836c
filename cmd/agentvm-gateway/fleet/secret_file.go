package fleet

import (
	"fmt"
	"io"
	"os"
	"runtime"
)

// maxSecretFile bounds a file with keys, in bytes.
const maxSecretFile = 64 << 20

// ReadSecretFile reads a file with keys. It refuses one that everyone may read, or that others than its owner may write. The group may read:
// Kubernetes mounts a secret for the group of the pod.
func ReadSecretFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o027 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so that other users may read or change the keys: chmod 0600 it (a secret's volume: defaultMode 0440)", path, mode)
	}
	return io.ReadAll(io.LimitReader(file, maxSecretFile))
}
