package vm

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"agentvm/egress"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/network/secret"
)

// Secret is a credential of Config.Secrets.
type Secret = secret.Secret

// ParseSecret reads NAME=SOURCE,hosts=HOST[,...], as the flag --secret has it. It does not read the source.
func ParseSecret(text string) (Secret, error) { return secret.Parse(text) }

// checkSecrets makes the authority for the secrets' hosts.
func (c *Config) checkSecrets() (err error) {
	if len(c.Secrets) == 0 {
		c.authority = nil
		return nil
	}
	if c.Network.Disabled {
		return errors.New("secrets: a VM without a network cannot use any")
	}
	if err := secret.Check(c.Secrets); err != nil {
		return err
	}
	if !c.authority.Covers(c.Secrets) {
		c.authority, err = secret.NewAuthority(c.Secrets)
	}
	return err
}

// secretsEnv returns the placeholders, and what has programs that bring authorities of their own use those of the image, to which the
// secrets' is added.
func (c Config) secretsEnv() []string {
	if len(c.Secrets) == 0 {
		return nil
	}
	const bundle = "/etc/ssl/certs/ca-certificates.crt" // the supervisor makes it when it is missing
	return append(secret.Env(c.Secrets), "NODE_EXTRA_CA_CERTS="+bundle, "REQUESTS_CA_BUNDLE="+bundle, "SSL_CERT_FILE="+bundle)
}

// readProxy returns the URL of the network's proxy, which may have a password and is therefore in no configuration.
func (c Config) readProxy(store string) (string, error) {
	if c.Network.Disabled || !secret.IsSource(c.Network.Proxy) {
		return c.Network.Proxy, nil
	}
	guard, err := hostpath.Known(store)
	if err != nil {
		return "", err
	}
	text, err := secret.ReadSource(c.Network.Proxy, func(path string, limit int64) ([]byte, error) {
		return guard.ReadFile(path, hostpath.Identity{}, limit)
	})
	if err == nil {
		text = strings.TrimSpace(text)
		err = egress.CheckProxy(text)
	}
	if err == nil && text == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", fmt.Errorf("the proxy's URL from %s: %w", c.Network.Proxy, err)
	}
	return text, nil
}

// openSecrets reads the secrets and makes their proxy. nil: there are none.
func (c Config) openSecrets(store string) (*secret.Proxy, error) {
	if len(c.Secrets) == 0 {
		return nil, nil
	}
	guard, err := hostpath.Known(store)
	if err != nil {
		return nil, err
	}
	list, err := secret.Read(c.Secrets, func(path string, limit int64) ([]byte, error) {
		return guard.ReadFile(path, hostpath.Identity{}, limit) // whoever renews a credential may replace the file
	})
	if err != nil {
		return nil, err
	}
	for i, kv := range secret.Env(list) {
		_, placeholder, _ := strings.Cut(kv, "=")
		c.Recorder.to().Hide(list[i].Value, placeholder)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("secrets: this system's certificate authorities: %w", err)
	}
	roots.AppendCertsFromPEM(c.CACertificate)
	return secret.NewProxy(secret.ProxyConfig{Secrets: list, Authority: c.authority, Roots: roots, Logger: c.Logger})
}
