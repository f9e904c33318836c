package preview

import (
	"context"
	"io"
	"time"
)

// Options are those of a Store. The zero value is good.
type Options struct {
	// KeyPath is the file of the key. Default: preview.key beside the store.
	KeyPath string
	// MaxLifetime caps what Create is asked for (preview.maxExpiresInSeconds). Default: 24 hours.
	MaxLifetime time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
	// Random is where keys and nonces come from. Default: crypto/rand.
	Random io.Reader
}

// A Preview is a link to a port of a VM.
type Preview struct {
	// ID is for people and for Revoke. It gives no access.
	ID string
	// VM is the VM's name, VMID tells it from others that had the name before.
	VM, VMID string
	// Port is the guest's TCP port.
	Port uint16
	// Created and Expires are in whole seconds; at Expires the preview is over.
	Created, Expires time.Time
	// Token is the secret part of the link.
	Token string
}

// A Store keeps previews.
type Store struct{}

// OpenStore opens the SQLite file path, and makes it and its directory when they are missing.
func OpenStore(path string, o Options) (*Store, error) { return nil, ErrClosed }

// Close closes the file.
func (s *Store) Close() error { return nil }

// Create makes a preview.
func (s *Store) Create(ctx context.Context, vm, vmID string, port uint16, lifetime time.Duration) (Preview, error) {
	return Preview{}, ErrClosed
}

// List returns the active previews of a VM, or of all when vm is "".
func (s *Store) List(ctx context.Context, vm string) ([]Preview, error) { return nil, ErrClosed }

// Revoke ends a preview, named by its ID or its token.
func (s *Store) Revoke(ctx context.Context, id string) error { return ErrClosed }

// RevokeAll ends the previews of a VM and returns how many there were.
func (s *Store) RevokeAll(ctx context.Context, vm string) (int, error) { return 0, ErrClosed }

// Collect removes what has expired and returns how much it was.
func (s *Store) Collect(ctx context.Context) (int, error) { return 0, ErrClosed }

// Rotate makes a new key.
func (s *Store) Rotate(ctx context.Context) error { return ErrClosed }

// Check returns the preview of a token.
func (s *Store) Check(ctx context.Context, token string) (Preview, error) { return Preview{}, ErrClosed }
