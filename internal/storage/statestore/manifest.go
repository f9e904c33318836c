package statestore

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"agentvm/internal/storage/snapshot"
)

const (
	maxManifest = 128 << 20 // bytes, expanded
	packSize    = 8 << 20   // bytes of pieces in a pack, not compressed
	maxPack     = packSize + 1<<20
	maxPacks    = 1 << 18
	maxPieces   = 1 << 26
)

// Manifest is what the store has of a snapshot. It names all packs that the snapshot needs.
type Manifest struct {
	Written time.Time `json:"written"` // by the writer's clock
	Packs   []Pack    `json:"packs"`
	// Base and Top are the file that the snapshot is layered on, if any, and the snapshot itself.
	Base *Layer `json:"base,omitempty"`
	Top  *Layer `json:"top,omitempty"`
	// Image is what the VM's root disk is made of.
	Image *Image `json:"image,omitempty"`
	// Note is the writer's, for whoever restores the snapshot.
	Note []byte `json:"note,omitempty"`
}

// Pack is an object with pieces.
type Pack struct {
	Name   string `json:"name"`   // of the object, without its prefix
	Size   int    `json:"size"`   // bytes of the pieces
	Stored int    `json:"stored"` // bytes of the object
}

// Layer is a snapshot's file.
type Layer struct {
	Outline []byte `json:"outline"` // see package snapshot
	Places  []byte `json:"places"`  // see place, one for each piece

	outline *snapshot.Outline
	places  []place
}

// Snapshot describes the file.
func (l *Layer) Snapshot() *snapshot.Outline { return l.outline }

// Image is an image in the form of an OCI archive.
type Image struct {
	Name     string `json:"name"`
	RootDisk string `json:"rootDisk"` // digest, as in snapshot.Meta
	Size     int64  `json:"size"`     // bytes of the archive
	Places   []byte `json:"places"`   // of its pieces, each of imagePiece bytes except the last

	places []place
}

// imagePiece is how many bytes of an image's archive a piece has.
const imagePiece = 1 << 20

// place is where a piece is: u32 pack, u32 offset in what the pack expands to, 32 bytes SHA-256 or HMAC of the piece; little-endian.
type place struct {
	pack, offset uint32
	sum          [sha256.Size]byte
}

const placeSize = 8 + sha256.Size

func encodePlaces(list []place) []byte {
	b := make([]byte, 0, len(list)*placeSize)
	for _, p := range list {
		b = binary.LittleEndian.AppendUint32(b, p.pack)
		b = binary.LittleEndian.AppendUint32(b, p.offset)
		b = append(b, p.sum[:]...)
	}
	return b
}

// decodePlaces checks that the pieces are in packs.
func (m *Manifest) decodePlaces(b []byte, pieces int, size func(int) int) ([]place, error) {
	if pieces > maxPieces || len(b) != pieces*placeSize {
		return nil, fmt.Errorf("%w: places of %d bytes for %d pieces", ErrDamaged, len(b), pieces)
	}
	list := make([]place, pieces)
	for i := range list {
		p := &list[i]
		p.pack, p.offset = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		p.sum, b = [sha256.Size]byte(b[8:]), b[placeSize:]
		if int64(p.pack) >= int64(len(m.Packs)) || int64(p.offset)+int64(size(i)) > int64(m.Packs[p.pack].Size) {
			return nil, fmt.Errorf("%w: piece %d is in no pack", ErrDamaged, i)
		}
	}
	return list, nil
}

// Info describes the snapshot.
func (m *Manifest) Info() snapshot.Meta { return m.Top.outline.Meta() }

// ID is that of the snapshot's file.
func (m *Manifest) ID() string { return m.Top.outline.ID() }

// Stored returns how many bytes the objects take that the snapshot needs, those that others need too included.
func (m *Manifest) Stored() (n int64) {
	for _, p := range m.Packs {
		n += int64(p.Stored)
	}
	return n
}

// encodeManifest returns the object for a key. With a key of the user's it has an HMAC that covers the object's key too, so that a
// snapshot cannot be given out as another one.
func (s *Store) encodeManifest(key string, m *Manifest) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > maxManifest {
		return nil, fmt.Errorf("a manifest of %d bytes", len(b))
	}
	if b, err = s.compress(b); err != nil {
		return nil, err
	}
	sum := s.key.sum(key, b)
	return s.key.close(append(sum[:], b...))
}

// packName has SHA-256 in hexadecimal, and a number when the pack of that name is marked.
var packName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}(\.[1-9][0-9]{0,5})?$`) })

// decodeManifest accepts bytes of anyone.
func (s *Store) decodeManifest(key string, object []byte) (*Manifest, error) {
	b, err := s.key.open(object)
	if err != nil {
		return nil, err
	}
	if len(b) < sha256.Size {
		return nil, fmt.Errorf("%w: it is cut", ErrDamaged)
	}
	if sum := s.key.sum(key, b[sha256.Size:]); !hmac.Equal(sum[:], b[:sha256.Size]) {
		if s.key != nil {
			return nil, fmt.Errorf("%w: a holder of the public key only, or of another object's manifest, has written it", ErrKey)
		}
		return nil, fmt.Errorf("%w: its hash", ErrDamaged)
	}
	if b, err = s.expand(b[sha256.Size:], nil, maxManifest); err != nil {
		return nil, err
	}
	m := &Manifest{}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return m, m.check(strings.HasPrefix(key, snapshotsPrefix))
}

func (m *Manifest) check(isSnapshot bool) error {
	if isSnapshot != (m.Top != nil) || !isSnapshot && m.Base == nil {
		return fmt.Errorf("%w: it has no snapshot", ErrDamaged)
	}
	if len(m.Packs) > maxPacks {
		return fmt.Errorf("%w: %d packs", ErrDamaged, len(m.Packs))
	}
	for _, p := range m.Packs {
		if !packName().MatchString(p.Name) || p.Size <= 0 || p.Size > packSize || p.Stored <= 0 || p.Stored > maxPack {
			return fmt.Errorf("%w: pack %.80q of %d bytes, stored %d", ErrDamaged, p.Name, p.Size, p.Stored)
		}
	}
	for _, l := range []*Layer{m.Base, m.Top} {
		if l == nil {
			continue
		}
		var err error
		if l.outline, err = snapshot.DecodeOutline(l.Outline); err != nil {
			return err
		}
		if l.places, err = m.decodePlaces(l.Places, l.outline.Pieces(), l.outline.Size); err != nil {
			return err
		}
	}
	if m.Top != nil {
		var base string
		if m.Base != nil {
			base = m.Base.outline.ID()
		}
		if m.Top.outline.BaseID() != base || m.Base != nil && m.Base.outline.BaseID() != "" {
			return fmt.Errorf("%w: it has another base than the snapshot names", ErrDamaged)
		}
	}
	if i := m.Image; i != nil {
		pieces := int64(len(i.Places) / placeSize)
		if i.Size <= 0 || i.Size > pieces*imagePiece || i.Size <= (pieces-1)*imagePiece {
			return fmt.Errorf("%w: an image of %d bytes in %d pieces", ErrDamaged, i.Size, pieces)
		}
		var err error
		if i.places, err = m.decodePlaces(i.Places, int(pieces), i.pieceSize); err != nil {
			return err
		}
	}
	return nil
}

func (i *Image) pieceSize(n int) int { return int(min(imagePiece, i.Size-int64(n)*imagePiece)) }

func hexSum(sum [sha256.Size]byte) string { return hex.EncodeToString(sum[:]) }
