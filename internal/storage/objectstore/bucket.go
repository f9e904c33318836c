// Package objectstore reads and writes small whole objects below one prefix of a bucket: Amazon S3 and what speaks its protocol, Google Cloud
// Storage, Azure Blob Storage, or a directory. It is a thin client of their REST interfaces, because their own libraries would add a fifth to the
// program; package statestore has the figures. Requests that fail for a passing reason are repeated. All methods may be called from several
// goroutines.
package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Object is an object without its contents.
type Object struct {
	Key      string
	Size     int64     // bytes
	Modified time.Time // by the clock of the store
}

// driver is what a kind of store does. Keys have the prefix. An object that does not exist is fs.ErrNotExist.
type driver interface {
	get(ctx context.Context, key string, limit int64) ([]byte, error)
	put(ctx context.Context, key string, content []byte) error
	head(ctx context.Context, key string) (Object, error)
	list(ctx context.Context, prefix, after string) (page []Object, next string, err error)
	remove(ctx context.Context, key string) error
}

// Bucket is a place of objects.
type Bucket struct {
	driver driver
	prefix string
	url    string // without secrets
	log    *slog.Logger
	pause  time.Duration // before the first repetition
}

// Options of Open.
type Options struct {
	// Getenv has the credentials, in the variables of the providers' own programs. Default: os.Getenv.
	Getenv func(string) string
	// Transport sends requests. Default: one as http.DefaultTransport, with time-outs.
	Transport http.RoundTripper
	// Logger receives repetitions. Default: none.
	Logger *slog.Logger
}

// ErrTooLarge is the error of an object that is larger than its reader expects.
var ErrTooLarge = errors.New("the object is larger than it can be")

// Forms are the URLs that Open takes.
const Forms = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, azblob://CONTAINER/PREFIX or file:///DIRECTORY"

// safe has the characters of buckets and prefixes: others would be spelled differently in URLs and signatures.
var safe = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/=-]*$`) })

// Open opens the bucket of a URL. It sends nothing.
func Open(text string, o Options) (*Bucket, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Transport == nil {
		dialer := &net.Dialer{Timeout: 10 * time.Second}
		o.Transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second, IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 16, DisableCompression: true,
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("object store %.200q: want %s", text, Forms)
	}
	b := &Bucket{log: o.Logger, url: u.Redacted(), pause: 100 * time.Millisecond}
	if u.Scheme == "file" {
		b.driver, err = openDirectory(u)
	} else {
		b.prefix = strings.Trim(u.Path, "/")
		if !safe().MatchString(u.Host) || b.prefix != "" && (!safe().MatchString(b.prefix) || strings.Contains(b.prefix, "//") || strings.Contains("/"+b.prefix+"/", "/../")) {
			return nil, fmt.Errorf("object store %.200q: bucket and prefix have letters, digits and . _ = - only; want %s", text, Forms)
		}
		if b.prefix != "" {
			b.prefix += "/"
		}
		b.driver, err = openRemote(u, o)
	}
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w", b.url, err)
	}
	return b, nil
}

func openRemote(u *url.URL, o Options) (driver, error) {
	client := &http.Client{Transport: o.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	switch u.Scheme {
	case "s3":
		return openS3(u, client, o.Getenv)
	case "gs":
		return openGoogle(u, client, o.Getenv)
	case "azblob":
		return openAzure(u, client, o.Getenv)
	}
	return nil, fmt.Errorf("want %s", Forms)
}

// String is the bucket's URL.
func (b *Bucket) String() string { return b.url }

// Get reads a whole object of at most limit bytes.
func (b *Bucket) Get(ctx context.Context, key string, limit int64) (content []byte, err error) {
	err = b.repeat(ctx, "read", key, func(ctx context.Context) error {
		content, err = b.driver.get(ctx, b.prefix+key, limit)
		return err
	})
	return content, err
}

// Put writes an object, replacing one of that key. Readers see the old or the new one.
func (b *Bucket) Put(ctx context.Context, key string, content []byte) error {
	return b.repeat(ctx, "write", key, func(ctx context.Context) error { return b.driver.put(ctx, b.prefix+key, content) })
}

// Head describes an object.
func (b *Bucket) Head(ctx context.Context, key string) (o Object, err error) {
	err = b.repeat(ctx, "look for", key, func(ctx context.Context) error {
		o, err = b.driver.head(ctx, b.prefix+key)
		return err
	})
	o.Key = key
	return o, err
}

// Delete removes an object. It is not an error when there is none.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	err := b.repeat(ctx, "remove", key, func(ctx context.Context) error { return b.driver.remove(ctx, b.prefix+key) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List yields the objects whose keys begin with prefix, in no certain order, until the first error.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		for after, more := "", true; more; more = after != "" {
			var page []Object
			err := b.repeat(ctx, "list", prefix, func(ctx context.Context) (err error) {
				var next string
				page, next, err = b.driver.list(ctx, b.prefix+prefix, after)
				if err == nil && next != "" && next == after {
					err = errors.New("the list does not end")
				}
				if err == nil {
					after = next
				}
				return err
			})
			if err != nil {
				yield(Object{}, err)
				return
			}
			for _, o := range page {
				key, ok := strings.CutPrefix(o.Key, b.prefix)
				if !ok || !strings.HasPrefix(key, prefix) {
					continue
				}
				o.Key = key
				if !yield(o, nil) {
					return
				}
			}
		}
	}
}

const (
	attempts = 6
	// attemptTime bounds one request: 16 MiB at 2 Mbit/s.
	attemptTime = 70 * time.Second
)

// repeat calls do until it succeeds, fails for good, or has failed too often.
func (b *Bucket) repeat(ctx context.Context, what, key string, do func(context.Context) error) error {
	pause := b.pause
	for n := 1; ; n++ {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, attemptTime)
			defer cancel()
			return do(ctx)
		}()
		if err == nil {
			return nil
		}
		if n == attempts || ctx.Err() != nil || permanent(err) {
			return fmt.Errorf("%s %s in %s: %w", what, key, b.url, err)
		}
		b.log.Debug("a request to the object store is repeated", "what", what, "key", key, "error", err)
		select {
		case <-time.After(pause + rand.N(pause)):
		case <-ctx.Done():
		}
		pause *= 2
	}
}

// statusError is a store's refusal.
type statusError struct {
	status  int
	code    string // the store's own
	message string
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("the store answered %d %s", e.status, http.StatusText(e.status))
	if e.code != "" {
		text += fmt.Sprintf(": %.100s: %.300s", e.code, e.message)
	}
	return text
}

// Is finds the objects that do not exist.
func (e *statusError) Is(target error) bool {
	return target == fs.ErrNotExist && e.status == http.StatusNotFound && e.code != "NoSuchBucket" && e.code != "ContainerNotFound" ||
		target == fs.ErrPermission && (e.status == http.StatusForbidden || e.status == http.StatusUnauthorized)
}

// permanent reports whether a request would fail again.
func permanent(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.status < 500 && status.status != http.StatusTooManyRequests && status.status != http.StatusRequestTimeout &&
			status.code != "RequestTimeout" && status.code != "OperationAborted" && status.code != "SlowDown"
	}
	return errors.Is(err, ErrTooLarge) || errors.Is(err, errCredentials) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}

// Credentials are the variables of an environment that say the same on any host: what another host needs to open the same buckets. nil: none is
// set, as where a host has an identity of its own.
func Credentials(getenv func(string) string) map[string]string {
	var found map[string]string
	for _, name := range []string{
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL",
		"GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN",
	} {
		if value := getenv(name); value != "" {
			if found == nil {
				found = map[string]string{}
			}
			found[name] = value
		}
	}
	return found
}
