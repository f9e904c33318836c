package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// Identity is identity.json: it distinguishes a VM from earlier and later ones of the same name. The daemon makes it at the VM's first
// start and keeps it for the VM's life. A VM that is restored from a snapshot under the saved VM's name can take over the saved one's.
type Identity struct {
	ID string `json:"id"` // 32 hexadecimal digits
	// PreviewPort is the port of the host's loopback interface at which the VM's previews are served; 0 before the first one is made.
	PreviewPort uint16 `json:"previewPort,omitempty"`
}

const identityBytes = 16

// Identity returns a VM's identity. For a VM that has never run, errors.Is(err, fs.ErrNotExist) holds.
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
	b, err := private.ReadFile(p.identity(), maxState)
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

// writeIdentity is for the daemon, which holds the lock.
func (p paths) writeIdentity(i Identity) error {
	b, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return atomicfile.Write(p.identity(), append(b, '\n'))
}

// chooseIdentity returns the VM's identity. A VM without one gets the saved VM's, if r has it, or a fresh one, which is to be written.
func (p paths) chooseIdentity(r *Restoration) (i Identity, fresh bool, err error) {
	i, err = p.readIdentity()
	if !errors.Is(err, fs.ErrNotExist) {
		return i, false, err
	}
	if r != nil && r.Identity != nil {
		return *r.Identity, true, nil
	}
	b := make([]byte, identityBytes)
	_, _ = rand.Read(b) // never fails
	return Identity{ID: hex.EncodeToString(b)}, true, nil
}
