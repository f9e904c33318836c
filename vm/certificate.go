package vm

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// maxCertificates bounds Config.CACertificate in bytes: more than any system's whole bundle.
const maxCertificates = 1 << 20

// certificates checks PEM text and leaves out what is not a certificate: comments, which bundles have.
func certificates(text []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, nil
	}
	if len(text) > maxCertificates {
		return nil, fmt.Errorf("CA certificate: %d KiB: at most %d KiB", len(text)>>10, maxCertificates>>10)
	}
	var out bytes.Buffer
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		switch {
		case strings.Contains(block.Type, "PRIVATE KEY"):
			return nil, errors.New("CA certificate: the file holds a private key, which the guest must not have: give the certificate only")
		case block.Type != "CERTIFICATE":
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
		if err := pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}); err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
	}
	if out.Len() == 0 {
		return nil, errors.New("CA certificate: there is none in PEM form (-----BEGIN CERTIFICATE-----); convert DER with openssl x509 -inform der")
	}
	return out.Bytes(), nil
}
