// Package secret lets programs of a guest use credentials that the guest never has. The guest sees a placeholder. On the way out, to exactly
// the hosts that a secret names, the placeholder is replaced by the secret inside of TLS, which a Proxy opens with the VM's own authority.
package secret

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// Bounds of what can be configured.
const (
	maxSecrets = 256
	maxHosts   = 64      // of one secret
	maxValue   = 8 << 10 // bytes; servers refuse headers that are much longer
)

// defaultPort is the port of a host that is named without one.
const defaultPort = 443

// Secret is a credential that the guest's programs use and never see.
type Secret struct {
	// Name is the environment variable whose value is the placeholder.
	Name string `json:"name"`
	// Source says where the value is read when the VM starts: env:VARIABLE or file:PATH, both of this host. Spaces and line ends around the
	// value are dropped.
	Source string `json:"source,omitempty"`
	// Value is the secret itself, in place of Source. Default: that of Source.
	Value string `json:"-"`
	// Hosts are the servers that get the secret, as NAME or NAME:PORT (default 443). They must be reached with TLS.
	Hosts []string `json:"hosts"`
	// Headers are the fields of a request in which the placeholder is replaced, also inside of HTTP's basic authentication. Default: all.
	Headers []string `json:"headers,omitempty"`
	// Query and Body have it replaced there, too. Compressed bodies stay as they are.
	Query bool `json:"query,omitempty"`
	Body  bool `json:"body,omitempty"`
	// Placeholder is what the guest sees, at least 16 bytes, for programs that check how a credential looks. Default: agentvm-secret-NAME.
	Placeholder string `json:"placeholder,omitempty"`
}

// Parse reads NAME=SOURCE,hosts=HOST[,HOST...][,header=FIELD[,FIELD...]][,in=query][,in=body][,placeholder=TEXT].
func Parse(text string) (s Secret, err error) {
	parts := strings.Split(text, ",")
	name, source, found := strings.Cut(parts[0], "=")
	if !found {
		return s, parseError(parts[0], errors.New("want NAME=env:VARIABLE,hosts=HOST, or NAME=file:PATH,hosts=HOST"))
	}
	s.Name, s.Source = name, source
	var key string
	for _, part := range parts[1:] {
		value := part
		if before, after, found := strings.Cut(part, "="); found {
			key, value = before, after
		}
		switch key {
		case "host", "hosts":
			s.Hosts = append(s.Hosts, value)
		case "header", "headers":
			s.Headers = append(s.Headers, value)
		case "placeholder":
			s.Placeholder = value
		case "in":
			switch value {
			case "query":
				s.Query = true
			case "body":
				s.Body = true
			default:
				return s, parseError(name, fmt.Errorf("in=%s: want in=query or in=body; headers always are", value))
			}
		default:
			return s, parseError(name, fmt.Errorf("%q: want hosts=, header=, in= or placeholder=", part))
		}
	}
	return s, s.check()
}

func parseError(name string, err error) error { return fmt.Errorf("secret %.40q: %w", name, err) }

// String is what Parse reads. It never has the value.
func (s Secret) String() string {
	text := s.Name + "=" + s.Source + ",hosts=" + strings.Join(s.Hosts, ",")
	if len(s.Headers) > 0 {
		text += ",header=" + strings.Join(s.Headers, ",")
	}
	if s.Query {
		text += ",in=query"
	}
	if s.Body {
		text += ",in=body"
	}
	if s.Placeholder != "" {
		text += ",placeholder=" + s.Placeholder
	}
	return text
}

// GoString is String: %#v does not show the value, nor does %+v.
func (s Secret) GoString() string { return s.String() }

// What texts look like. They are compiled when a VM has secrets, and not at each start of this program.
var (
	variable = pattern(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	hostName = pattern(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)
	plain    = pattern(`^[A-Za-z0-9._~-]{16,512}$`) // unreserved characters (RFC 3986 section 2.3): the same in a header and in a query
)

func pattern(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

// check returns what is wrong with s, and reads nothing.
func (s Secret) check() error {
	if !variable().MatchString(s.Name) {
		return parseError(s.Name, errors.New("want the name of an environment variable"))
	}
	kind, what, _ := strings.Cut(s.Source, ":")
	if s.Value == "" && (kind != "env" && kind != "file" || what == "") {
		return parseError(s.Name, errors.New("want env:VARIABLE or file:PATH after the name: a secret itself does not belong on a command line"))
	}
	if len(s.Hosts) == 0 {
		return parseError(s.Name, errors.New("name the servers that get it with hosts=HOST"))
	}
	if len(s.Hosts) > maxHosts {
		return parseError(s.Name, fmt.Errorf("%d hosts: at most %d can get it", len(s.Hosts), maxHosts))
	}
	for _, text := range s.Hosts {
		if _, err := parseHost(text); err != nil {
			return parseError(s.Name, err)
		}
	}
	for _, field := range s.Headers {
		if !httpguts.ValidHeaderFieldName(field) {
			return parseError(s.Name, fmt.Errorf("header %q: want the name of a field of HTTP requests, as Authorization", field))
		}
	}
	if s.Placeholder != "" && !plain().MatchString(s.Placeholder) {
		return parseError(s.Name, errors.New("placeholder: want 16 to 512 letters, digits and . _ ~ -"))
	}
	return nil
}

// host is a server, as the guest names it.
type host struct {
	name string // lower case, without a last dot
	port uint16
}

func parseHost(text string) (h host, err error) {
	name, port, found := strings.Cut(text, ":")
	h = host{strings.TrimSuffix(strings.ToLower(name), "."), defaultPort}
	if found {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return h, fmt.Errorf("host %q: want a port from 1 to 65535", text)
		}
		h.port = uint16(n)
	}
	if len(h.name) > 253 || !hostName().MatchString(h.name) || !strings.ContainsFunc(h.name, func(r rune) bool { return r >= 'a' }) {
		return h, fmt.Errorf("host %q: want the name of one server, as api.example.com, without wildcards", text)
	}
	return h, nil
}

// Check returns what is wrong with a VM's secrets, and reads none of them.
func Check(list []Secret) error {
	if len(list) > maxSecrets {
		return fmt.Errorf("%d secrets: a VM can have at most %d", len(list), maxSecrets)
	}
	seen := map[string]bool{}
	for _, s := range list {
		if err := s.check(); err != nil {
			return err
		}
		if seen[s.Name] || seen[s.placeholder()] {
			return parseError(s.Name, errors.New("there are two with this name or placeholder"))
		}
		seen[s.Name], seen[s.placeholder()] = true, true
	}
	return nil
}

func (s Secret) placeholder() string {
	if s.Placeholder != "" {
		return s.Placeholder
	}
	return "agentvm-secret-" + s.Name
}

// Env returns NAME=PLACEHOLDER for each secret.
func Env(list []Secret) (env []string) {
	for _, s := range list {
		env = append(env, s.Name+"="+s.placeholder())
	}
	return env
}

// Read returns the list with its values, of those that have none read from their sources. readFile reads a file of at most limit bytes.
func Read(list []Secret, readFile func(path string, limit int64) ([]byte, error)) ([]Secret, error) {
	list = slices.Clone(list)
	for i := range list {
		s := &list[i]
		if s.Value == "" {
			value, err := ReadSource(s.Source, readFile)
			if err != nil {
				return nil, parseError(s.Name, err)
			}
			s.Value = strings.TrimSpace(value)
		}
		switch {
		case s.Value == "":
			return nil, parseError(s.Name, fmt.Errorf("%s is empty", s.Source))
		case len(s.Value) > maxValue:
			return nil, parseError(s.Name, fmt.Errorf("it is longer than %d KiB", maxValue>>10))
		case !httpguts.ValidHeaderFieldValue(s.Value):
			return nil, parseError(s.Name, errors.New("it has control characters, which no header can have"))
		case strings.Contains(s.Value, s.placeholder()):
			return nil, parseError(s.Name, errors.New("its value has the placeholder in it"))
		}
	}
	return list, nil
}

// IsSource reports whether a text names a source, env:VARIABLE or file:PATH.
func IsSource(text string) bool {
	kind, what, _ := strings.Cut(text, ":")
	return (kind == "env" || kind == "file") && what != ""
}

// ReadSource reads a source, with the spaces around it.
func ReadSource(source string, readFile func(path string, limit int64) ([]byte, error)) (string, error) {
	kind, what, _ := strings.Cut(source, ":")
	if kind == "env" {
		value, found := os.LookupEnv(what)
		if !found {
			return "", fmt.Errorf("the environment variable %s is not set", what)
		}
		return value, nil
	}
	text, err := readFile(what, maxValue+64) // with the spaces around it
	return string(text), err
}

// canonical returns the fields of a header as net/http spells them.
func canonical(fields []string) (list []string) {
	for _, field := range fields {
		list = append(list, http.CanonicalHeaderKey(field))
	}
	return list
}
