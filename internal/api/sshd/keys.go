package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// maxKey bounds a key's file, in bytes.
const maxKey = 16 << 10

// Key returns the key in a file, in OpenSSH's format, of a folder that only the user can change. It is made when there is none.
func Key(path, comment string) (ssh.Signer, error) {
	if err := private.MakeFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	for {
		text, _, err := private.ReadSecret(path, maxKey)
		if errors.Is(err, fs.ErrNotExist) {
			if err := makeKey(path, comment); err != nil {
				return nil, fmt.Errorf("make an SSH key: %w", err)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		signer, err := ssh.ParsePrivateKey(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w (remove it to have another one made)", path, err)
		}
		return signer, nil
	}
}

// makeKey makes a key, unless another process was faster.
func makeKey(path, comment string) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err = f.Write(pem.EncodeToMemory(block)); err == nil {
		err = f.CommitNew()
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// WriteKnownHost writes the file by which ssh knows the key of a host.
func WriteKnownHost(path, host string, key ssh.PublicKey) error {
	line := append([]byte(host+" "), ssh.MarshalAuthorizedKey(key)...)
	if old, _, err := private.ReadSecret(path, maxKey); err == nil && string(old) == string(line) {
		return nil
	}
	return atomicfile.Write(path, line)
}
