// Package ticket makes and checks the proof that a request to a pod comes from a gateway of its cluster: a signature (Ed25519) over the pod's
// identifier and a time. Pods have only the public key, so that a guest that has taken over its pod can make no proof for another one, and a
// proof that it has seen opens no pod but its own.
package ticket

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"time"
)

// Header is where a request has it.
const Header = "Agentvm-Ticket"

// Life is how long a ticket is good for.
const Life = 10 * time.Minute

// skew is how much the clocks of two nodes may differ.
const skew = time.Minute

var encoding = base64.RawURLEncoding

func message(pod string, ends uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte("agentvm pod\x00"+pod+"\x00"), ends)
}

// Make makes a ticket for the pod with an identifier.
func Make(key ed25519.PrivateKey, pod string, now time.Time) string {
	ends := uint64(now.Add(Life).Unix())
	signature := ed25519.Sign(key, message(pod, ends))
	return encoding.EncodeToString(binary.BigEndian.AppendUint64(signature, ends))
}

// ErrInvalid is the error of what is no ticket for a pod and a time.
var ErrInvalid = errors.New("the request has no valid ticket of a gateway")

// Check reports whether a text is a ticket for a pod.
func Check(key ed25519.PublicKey, pod, text string, now time.Time) error {
	raw, err := encoding.DecodeString(text)
	if err != nil || len(raw) != ed25519.SignatureSize+8 {
		return ErrInvalid
	}
	ends := binary.BigEndian.Uint64(raw[ed25519.SignatureSize:])
	if ends > uint64(now.Add(Life+skew).Unix()) || ends < uint64(now.Add(-skew).Unix()) {
		return ErrInvalid
	}
	if !ed25519.Verify(key, message(pod, ends), raw[:ed25519.SignatureSize]) {
		return ErrInvalid
	}
	return nil
}

// PublicKey reads a public key in PEM (PKIX), as openssl pkey -pubout writes it.
func PublicKey(text []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is no PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("it is no key for Ed25519: make one with openssl genpkey -algorithm ed25519")
	}
	return public, nil
}

// PrivateKey reads a private key in PEM (PKCS #8), as openssl genpkey -algorithm ed25519 writes it.
func PrivateKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("it is no key for Ed25519: make one with openssl genpkey -algorithm ed25519")
	}
	return private, nil
}
