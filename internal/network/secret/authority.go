package secret

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"time"
)

const (
	authorityTime = 10 * 365 * 24 * time.Hour
	leafTime      = 90 * 24 * time.Hour
	clockSlack    = 24 * time.Hour // by which a guest's clock may be behind
)

// Authority signs the certificates that a VM's guest sees in place of those of the hosts that get secrets. Its key is in the memory of
// this process alone, and its certificate is good for no other names (RFC 5280 section 4.2.1.10).
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// NewAuthority makes one for the hosts of a VM's secrets, which Check has accepted.
func NewAuthority(list []Secret) (*Authority, error) {
	names := hostNames(list)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "agentvm: hosts that get secrets of this VM"},
		NotBefore: now.Add(-clockSlack), NotAfter: now.Add(authorityTime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: names,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the authority for secrets: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the authority for secrets: %w", err)
	}
	return &Authority{certificate: certificate, key: key, leaves: map[string]*tls.Certificate{}}, nil
}

// hostNames returns the sorted names of the hosts of a list, which Check has accepted.
func hostNames(list []Secret) (names []string) {
	for _, s := range list {
		for _, text := range s.Hosts {
			h, _ := parseHost(text)
			names = append(names, h.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Covers reports whether the authority is good for exactly the hosts of a list. A nil one is for none.
func (a *Authority) Covers(list []Secret) bool {
	return a != nil && slices.Equal(a.certificate.PermittedDNSDomains, hostNames(list))
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return n
}

// PEM returns the certificate that the guest trusts; nil has none.
func (a *Authority) PEM() []byte {
	if a == nil {
		return nil
	}
	var b bytes.Buffer
	_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}) // a Buffer takes everything
	return b.Bytes()
}

// leaf returns a certificate for a name, which is one of the hosts'.
func (a *Authority) leaf(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if c := a.leaves[name]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafTime/2)) {
		return c, nil
	}
	template := x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "agentvm"}, DNSNames: []string{name},
		NotBefore: now.Add(-clockSlack), NotAfter: now.Add(leafTime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.certificate, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	c := &tls.Certificate{Certificate: [][]byte{der, a.certificate.Raw}, PrivateKey: a.key}
	if c.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	a.leaves[name] = c
	return c, nil
}
