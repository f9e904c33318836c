package statestore

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"

	"agentvm/internal/host/private"
)

// Key is an age identity of the user's. Objects are encrypted to it; and because age lets anyone encrypt who has the public half, a key for
// HMACs is derived from the secret one.
type Key struct {
	identity *age.X25519Identity
	mac      []byte
}

const maxKeyFile = 64 << 10 // bytes

// ReadKey reads a file with one age identity, as age-keygen and NewKey write it. Other users must not be able to read it.
func ReadKey(path string) (*Key, error) {
	b, _, err := private.ReadSecret(path, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("key of the state store: %w", err)
	}
	k, err := ParseKey(b)
	if err != nil {
		return nil, fmt.Errorf("key of the state store %s: %w", path, err)
	}
	return k, nil
}

// ParseKey reads a key.
func ParseKey(b []byte) (*Key, error) {
	list, err := age.ParseIdentities(bytes.NewReader(b))
	if err != nil || len(list) != 1 {
		return nil, fmt.Errorf("want one line that begins with AGE-SECRET-KEY-1, as agentvm snapshot key or age-keygen write it")
	}
	identity, ok := list[0].(*age.X25519Identity)
	if !ok {
		return nil, errors.New("want an age identity of the kind X25519")
	}
	return newKey(identity)
}

// NewKey makes a key, and returns the text of its file.
func NewKey() (string, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return "", err
	}
	return "# public key: " + identity.Recipient().String() + "\n" + identity.String() + "\n", nil
}

// DeriveKey makes the text of a key's file from a secret of at least 16 bytes: always the same for a purpose, such as the name of a tenant. The keys
// of other purposes do not follow from it.
func DeriveKey(secret []byte, purpose string) (string, error) {
	if len(secret) < 16 {
		return "", errors.New("a secret of at least 16 bytes is needed")
	}
	scalar, err := hkdf.Key(sha256.New, secret, nil, "agentvm state store, key of "+purpose, curveSize)
	if err != nil {
		return "", err
	}
	return strings.ToUpper(bech32("age-secret-key-", scalar)) + "\n", nil
}

const curveSize = 32 // bytes of a secret of X25519

// bech32 writes bytes as BIP 173 has it, which age keeps to itself.
func bech32(prefix string, content []byte) string {
	const letters = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	var groups []byte // of five bits
	bits, held := 0, uint(0)
	for _, b := range content {
		held, bits = held<<8|uint(b), bits+8
		for ; bits >= 5; bits -= 5 {
			groups = append(groups, byte(held>>(bits-5)&31))
		}
	}
	if bits > 0 {
		groups = append(groups, byte(held<<(5-bits)&31))
	}
	sum := uint32(1)
	add := func(group byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(group)
		for i, generator := range [5]uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= generator
			}
		}
	}
	for _, c := range []byte(prefix) {
		add(c >> 5)
	}
	add(0)
	for _, c := range []byte(prefix) {
		add(c & 31)
	}
	for _, g := range groups {
		add(g)
	}
	for range 6 {
		add(0)
	}
	sum ^= 1
	for i := range 6 {
		groups = append(groups, byte(sum>>(5*(5-i))&31))
	}
	text := []byte(prefix + "1")
	for _, g := range groups {
		text = append(text, letters[g])
	}
	return string(text)
}

func newKey(identity *age.X25519Identity) (*Key, error) {
	mac, err := hkdf.Key(sha256.New, []byte(strings.ToUpper(identity.String())), nil, "agentvm state store, HMAC", sha256.Size)
	return &Key{identity, mac}, err
}

// encrypt encrypts to the key.
func (k *Key) encrypt(b []byte) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(b) + len(b)>>10 + 512)
	w, err := age.Encrypt(&out, k.identity.Recipient())
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// decrypt is its reverse.
func (k *Key) decrypt(b []byte) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(b), k.identity)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(b))
	_, err = io.Copy(&out, r)
	return out.Bytes(), err
}

// sum returns what stands for some bytes: their HMAC for a purpose, without a key their SHA-256.
func (k *Key) sum(purpose string, b []byte) (sum [sha256.Size]byte) {
	if k == nil {
		return sha256.Sum256(b)
	}
	h := hmac.New(sha256.New, k.mac)
	h.Write([]byte(purpose))
	h.Write([]byte{0})
	h.Write(b)
	h.Sum(sum[:0])
	return sum
}

// The first line of an object says whether it is encrypted.
const (
	plainMark = "agentvm state 1, plain\n"
	keyedMark = "agentvm state 1, age\n"
)

// ErrKey means that an object is not of the user's key.
var ErrKey = errors.New("the object is not of this key")

// close makes an object of bytes.
func (k *Key) close(b []byte) ([]byte, error) {
	if k == nil {
		return append([]byte(plainMark), b...), nil
	}
	b, err := k.encrypt(b)
	return append([]byte(keyedMark), b...), err
}

// open returns the bytes of an object.
func (k *Key) open(b []byte) ([]byte, error) {
	plain, isPlain := bytes.CutPrefix(b, []byte(plainMark))
	keyed, isKeyed := bytes.CutPrefix(b, []byte(keyedMark))
	switch {
	case isPlain && k == nil:
		return plain, nil
	case isPlain:
		return nil, fmt.Errorf("%w: it was written without one, so anyone may have written it: leave the key out to read it as such", ErrKey)
	case isKeyed && k == nil:
		return nil, fmt.Errorf("%w: it is encrypted: give its key (--state-key FILE, or AGENTVM_STATE_KEY)", ErrKey)
	case isKeyed:
		b, err := k.decrypt(keyed)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrKey, err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("%w: it does not begin like one of agentvm's, or another version has written it", ErrDamaged)
}
