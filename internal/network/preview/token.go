package preview

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// The bytes of a token, 39 in all, so that its 63 characters are just what a DNS label takes (RFC 1035 section 2.3.4):
//
//	0   version, 1
//	1   port, big-endian
//	3   end of the time, seconds since 1970, big-endian
//	7   identity of the VM
//	15  nonce, which is the preview's ID
//	23  HMAC-SHA256 of the bytes before, its first 16 bytes
const (
	tokenVersion = 1
	bodyBytes    = 23
	tagBytes     = 16
	tokenBytes   = bodyBytes + tagBytes
)

// TokenLength is the number of characters of a token's text.
const TokenLength = 63

// labelEncoding is base32hex (RFC 4648 section 7) in lower case without padding: DNS names do not keep their case.
// It is a constant that Go cannot write as one.
var labelEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// A Token is what the text in a link says. Its zero value is not a valid token.
type Token struct {
	// Identity is a digest of the VM's name and ID, see IdentityOf.
	Identity [8]byte
	// Port is the guest's TCP port, not 0.
	Port uint16
	// Expires is the first moment at which the token is worth nothing, in whole seconds.
	Expires time.Time
	// Nonce is random and tells previews apart.
	Nonce [8]byte
}

// IdentityOf returns the digest by which a token names its VM. The store has the names themselves.
func IdentityOf(vm, id string) (digest [8]byte) {
	h := sha256.New()
	h.Write([]byte("agentvm preview VM 1\x00"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(vm)))) // so that no two pairs are the same bytes
	h.Write([]byte(vm))
	h.Write([]byte(id))
	copy(digest[:], h.Sum(nil))
	return digest
}

// ID returns the text by which previews are listed and revoked. Knowing it gives no access.
func (t Token) ID() string { return labelEncoding.EncodeToString(t.Nonce[:]) }

// body returns the bytes that are signed.
func (t Token) body() []byte {
	b := make([]byte, 0, tokenBytes)
	b = append(b, tokenVersion)
	b = binary.BigEndian.AppendUint16(b, t.Port)
	b = binary.BigEndian.AppendUint32(b, uint32(t.Expires.Unix())) //nolint:gosec // checked by Create, good until 2106
	b = append(b, t.Identity[:]...)
	return append(b, t.Nonce[:]...)
}

// parseToken splits text, which anybody may have written, into what it says and its signature. It accepts only what
// Sign writes: one text for each token.
func parseToken(text string) (t Token, body, tag []byte, err error) {
	if len(text) != TokenLength {
		return t, nil, nil, fmt.Errorf("%w: it has %d characters, not %d", ErrForged, len(text), TokenLength)
	}
	var raw [tokenBytes + 1]byte // the decoder writes whole groups
	n, err := labelEncoding.Decode(raw[:], []byte(text))
	if err != nil || n != tokenBytes {
		return t, nil, nil, fmt.Errorf("%w: it has characters that no token has", ErrForged)
	}
	b := raw[:tokenBytes]
	if labelEncoding.EncodeToString(b) != text { // bits behind the end, line breaks
		return t, nil, nil, fmt.Errorf("%w: it is written in another way", ErrForged)
	}
	if b[0] != tokenVersion {
		return t, nil, nil, fmt.Errorf("%w: it is of version %d", ErrForged, b[0])
	}
	t.Port = binary.BigEndian.Uint16(b[1:])
	t.Expires = time.Unix(int64(binary.BigEndian.Uint32(b[3:])), 0).UTC()
	copy(t.Identity[:], b[7:])
	copy(t.Nonce[:], b[15:])
	return t, b[:bodyBytes], b[bodyBytes:], nil
}

// latest is the last moment that a token can name.
func latest() time.Time { return time.Unix(math.MaxUint32, 0) }
