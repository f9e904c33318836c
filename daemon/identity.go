package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// Identity is identity.json: what tells a VM from others that had its name before, or get it later. The daemon makes it at the VM's
// first start and keeps it for the VM's life; a VM that a snapshot is restored to under the saved one's name can have that one's.
type Identity struct {
	ID string `json:"id"` // 32 hexadecimal digits
	// PreviewPort is the port of this host's loopback at which the VM's previews are, since the first one was made.
	PreviewPort uint16 `json:"previewPort,omitempty"`
}

const identityBytes = 16

// Identity returns a VM's. errors.Is(err, fs.ErrNotExist) when it has none, because it has never run.
func (s Store) Identity(name string) (Identity, error) {
	p, err := s.existing(name)
	if err != nil {
		return Identity{}, err
	}
	return p.readIdentity()
}

func (i Identity) check() error {
	if b, err := hex.DecodeString(i.ID); err != nil || len(b) != identityBytes {
		return fmt.Errorf("identity %.80q: want %d bytes in hexadecimal", i.ID, identityBytes)
	}
	return nil
}

func (p paths) readIdentity() (i Identity, err error) {
	b, err := readSmall(p.identity(), maxState)
	if err != nil {
		return i, err
	}
	if err = json.Unmarshal(b, &i); err == nil {
		err = i.check()
	}
	if err != nil {
		return i, fmt.Errorf("read who a VM is: %s: %w", p.identity(), err)
	}
	return i, nil
}

// writeIdentity is for the daemon, which has the lock.
func (p paths) writeIdentity(i Identity) error {
	b, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return writeFile(p.identity(), append(b, '\n'))
}

// ensureIdentity reads the VM's identity. One that has none gets the saved VM's, if it takes that one's place, or a new one.
func (p paths) ensureIdentity(r *Restoration) (Identity, error) {
	i, err := p.readIdentity()
	if !errors.Is(err, fs.ErrNotExist) {
		return i, err
	}
	if r != nil && r.Identity != nil {
		i = *r.Identity
	} else {
		b := make([]byte, identityBytes)
		_, _ = rand.Read(b) // never fails
		i.ID = hex.EncodeToString(b)
	}
	return i, p.writeIdentity(i)
}
