package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const versionLong = `Prints the versions of agentvm and of what is built into it.

agentvm never asks by itself whether there is a newer one. --check asks once: it reads SHA256SUMS in the folder of the newest release,
through the proxy of HTTPS_PROXY if there is one, and sends nothing about this host. The folder's address is --from, or AGENTVM_RELEASES.`

// releases is the URL of the folder of the newest release, for builds that the linker puts one into (-X main.releases=URL). There is no public
// one yet.
var releases string

const (
	checkTime = 20 * time.Second
	maxSums   = 1 << 20 // bytes of SHA256SUMS
)

// newestRelease returns the version of the release in a folder.
func newestRelease(ctx context.Context, folder string) (string, error) {
	if folder == "" {
		return "", errors.New("this agentvm knows no address of releases, because there is no public one yet: name the folder of the newest release, as --from https://HOST/PATH or in AGENTVM_RELEASES")
	}
	u, err := url.Parse(folder)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopbackHost(u.Hostname())) {
		return "", fmt.Errorf("releases at %.200q: want https://HOST/PATH; http only leads to 127.0.0.1", folder)
	}
	u = u.JoinPath("SHA256SUMS")
	fail := func(err error) (string, error) {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err // it has the address, too
		}
		return "", fmt.Errorf("ask for the newest release at %s: %w", u.Redacted(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fail(err)
	}
	request.Header.Set("User-Agent", "agentvm")
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, CheckRedirect: onlySecure}).Do(request)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fail(fmt.Errorf("the server answered %d %s", response.StatusCode, http.StatusText(response.StatusCode)))
	}
	sums, err := io.ReadAll(io.LimitReader(response.Body, maxSums))
	if err != nil {
		return fail(err)
	}
	for line := range strings.Lines(string(sums)) {
		if version, ok := releaseOf(line); ok {
			return version, nil
		}
	}
	return fail(errors.New("the file names no agentvm_VERSION_...: is this the folder of a release?"))
}

// onlySecure refuses redirects from https to elsewhere.
func onlySecure(to *http.Request, via []*http.Request) error {
	if len(via) > 5 {
		return errors.New("more than 5 redirects")
	}
	if via[0].URL.Scheme == "https" && to.URL.Scheme != "https" {
		return fmt.Errorf("a redirect from https to %s", to.URL.Redacted())
	}
	return nil
}

func loopbackHost(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// releaseOf returns the version that a line of SHA256SUMS names.
func releaseOf(line string) (version string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return "", false
	}
	name, found := strings.CutPrefix(strings.TrimPrefix(fields[1], "*"), "agentvm_")
	version, _, more := strings.Cut(name, "_")
	_, valid := parseVersion(version)
	return version, found && more && valid
}

// parsedVersion is MAJOR.MINOR.PATCH, with what comes after a hyphen.
type parsedVersion struct {
	numbers [3]uint64
	pre     string // rc.1; empty: a release
}

// parseVersion reads 1.2.3 or 1.2.3-rc.1.
func parseVersion(text string) (v parsedVersion, ok bool) {
	base, pre, has := strings.Cut(text, "-")
	parts := strings.Split(base, ".")
	if len(parts) != len(v.numbers) || has && (pre == "" || strings.Trim(pre, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-") != "") {
		return v, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return v, false
		}
		v.numbers[i] = n
	}
	v.pre = pre
	return v, true
}

// newer reports whether version a comes after b. What is no version comes before all others.
func newer(a, b string) bool {
	va, ok := parseVersion(a)
	vb, known := parseVersion(strings.TrimPrefix(b, "v"))
	switch {
	case !ok || !known:
		return ok
	case va.numbers != vb.numbers:
		for i := range va.numbers {
			if va.numbers[i] != vb.numbers[i] {
				return va.numbers[i] > vb.numbers[i]
			}
		}
	}
	return va.pre == "" && vb.pre != "" || va.pre != "" && vb.pre != "" && va.pre > vb.pre
}
