package vm

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
)

func selfSigned(t *testing.T) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestCertificates(t *testing.T) {
	one := selfSigned(t)
	key := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("secret")})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("broken")})
	for _, tt := range []struct {
		name       string
		give, want []byte
		err        string
	}{
		{"none", nil, nil, ""},
		{"one", one, one, ""},
		{"comments are left out", append([]byte("# ours\n"), one...), one, ""},
		{"several", bytes.Repeat(one, 2), bytes.Repeat(one, 2), ""},
		{"private key", append(bytes.Clone(one), key...), nil, "private key"},
		{"not a certificate inside", broken, nil, "CA certificate"},
		{"DER", []byte{0x30, 0x82, 1, 2}, nil, "PEM form"},
		{"huge", make([]byte, maxCertificates+1), nil, "at most 1024 KiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := certificates(tt.give)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if !bytes.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
