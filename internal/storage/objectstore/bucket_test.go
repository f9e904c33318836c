package objectstore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func env(list map[string]string) func(string) string { return func(n string) string { return list[n] } }

func serve(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func fakeS3(t *testing.T) http.Handler {
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	return gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
}

// fakeAzure has what the REST reference says of five operations. It checks the signature by its own reading of that reference.
type fakeAzure struct {
	t    *testing.T
	mu   sync.Mutex
	blob map[string][]byte
}

const azureSecret = "c2VjcmV0"

func (f *fakeAzure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	secret, _ := base64.StdEncoding.DecodeString(azureSecret)
	length, kind, blobKind := "", "", ""
	if r.Method == http.MethodPut {
		kind, blobKind = "application/octet-stream", "x-ms-blob-type:BlockBlob\n"
		if r.ContentLength > 0 {
			length = fmt.Sprint(r.ContentLength)
		}
	}
	query := ""
	if r.URL.Query().Has("comp") {
		query = "\ncomp:list"
		if marker := r.URL.Query().Get("marker"); marker != "" {
			query += "\nmarker:" + marker
		}
		query += "\nprefix:" + r.URL.Query().Get("prefix") + "\nrestype:container"
	}
	text := r.Method + "\n\n\n" + length + "\n\n" + kind + "\n\n\n\n\n\n\n" + blobKind + "x-ms-date:" + r.Header.Get("x-ms-date") + "\nx-ms-version:" + r.Header.Get("x-ms-version") + "\n/me" + r.URL.Path + query
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	if want := "SharedKey me:" + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("Authorization") != want {
		f.t.Errorf("%s %s: signed %q, want %q", r.Method, r.URL, r.Header.Get("Authorization"), want)
		w.WriteHeader(http.StatusForbidden)
		return
	}
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	b, exists := f.blob[key]
	switch {
	case query != "":
		prefix, after := r.URL.Query().Get("prefix"), r.URL.Query().Get("marker")
		fmt.Fprint(w, `<?xml version="1.0"?><EnumerationResults><Blobs>`)
		next := ""
		for name := range f.blob { // one at a time
			if strings.HasPrefix(name, prefix) && name > after && (next == "" || name < next) {
				next = name
			}
		}
		if next != "" {
			fmt.Fprintf(w, `<Blob><Name>%s</Name><Properties><Last-Modified>%s</Last-Modified><Content-Length>%d</Content-Length></Properties></Blob>`, next, time.Now().UTC().Format(http.TimeFormat), len(f.blob[next]))
		}
		fmt.Fprintf(w, `</Blobs><NextMarker>%s</NextMarker></EnumerationResults>`, next)
	case r.Method == http.MethodPut:
		f.blob[key], _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
	case !exists:
		w.Header().Set("X-Ms-Error-Code", "BlobNotFound")
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodDelete:
		delete(f.blob, key)
		w.WriteHeader(http.StatusAccepted)
	default:
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		_, _ = w.Write(b)
	}
}

func buckets(t *testing.T) map[string]*Bucket {
	list := make(map[string]*Bucket)
	for name, s := range map[string]struct {
		url string
		env map[string]string
	}{
		"s3":    {"s3://bucket/a/b?endpoint=" + serve(t, fakeS3(t)), map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}},
		"gs":    {"gs://bucket/a?endpoint=" + serve(t, fakeS3(t)), map[string]string{"GS_ACCESS_KEY_ID": "id", "GS_SECRET_ACCESS_KEY": "key"}},
		"azure": {"azblob://bucket/a?account=me&endpoint=" + serve(t, &fakeAzure{t: t, blob: map[string][]byte{}}), map[string]string{"AZURE_STORAGE_KEY": azureSecret}},
		"file":  {"file://" + filepath.ToSlash(t.TempDir()) + "/new", nil},
	} {
		b, err := Open(s.url, Options{Getenv: env(s.env)})
		if err != nil {
			t.Fatal(err)
		}
		b.pause = time.Millisecond
		list[name] = b
	}
	return list
}

func TestBuckets(t *testing.T) {
	for name, b := range buckets(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			want := map[string]string{"x/one": "1", "x/two": strings.Repeat("2", 100000), "y": "", "x.z": "4"}
			for key, text := range want {
				if err := b.Put(ctx, key, []byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Put(ctx, "x/one", []byte("again")); err != nil {
				t.Fatal(err)
			}
			want["x/one"] = "again"
			for key, text := range want {
				got, err := b.Get(ctx, key, 1<<20)
				if err != nil || string(got) != text {
					t.Errorf("%s: %.20q, %v", key, got, err)
				}
				o, err := b.Head(ctx, key)
				if err != nil || o.Size != int64(len(text)) || o.Key != key || time.Since(o.Modified).Abs() > time.Hour {
					t.Errorf("%s: %+v, %v", key, o, err)
				}
			}
			if _, err := b.Get(ctx, "x/two", 99999); !errors.Is(err, ErrTooLarge) {
				t.Errorf("too large: %v", err)
			}
			found := map[string]int64{}
			for o, err := range b.List(ctx, "x/") {
				if err != nil {
					t.Fatal(err)
				}
				found[o.Key] = o.Size
			}
			if len(found) != 2 || found["x/one"] != 5 || found["x/two"] != 100000 {
				t.Errorf("list: %v", found)
			}
			for range 2 {
				if err := b.Delete(ctx, "x/one"); err != nil {
					t.Error(err)
				}
			}
			if _, err := b.Get(ctx, "x/one", 10); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removed: %v", err)
			}
			if _, err := b.Head(ctx, "x/one"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removed: %v", err)
			}
		})
	}
}

func TestRefusedURLs(t *testing.T) {
	for _, url := range []string{
		"", "bucket", "http://x/y", "s3://", "s3://b/../x", "s3://b/x//y", "s3://b/a b", "s3://user:pw@b/x", "s3://b/x#y", "s3://b/x?what=1", "s3://b/x?endpoint=ftp://h",
		"file://host/x", "file:x", "file:///x?y=1", "azblob://c/x", "s3://b/x?region=a/b",
	} {
		if b, err := Open(url, Options{Getenv: env(nil)}); err == nil {
			t.Errorf("%q is taken: %v", url, b)
		}
	}
}

// A link in a directory leads nowhere outside.
func TestLinksOfADirectory(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "packs")); err != nil {
		t.Skip(err)
	}
	b, err := Open("file://"+filepath.ToSlash(dir), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "packs/x", []byte("x")); err == nil {
		t.Error("it is written")
	}
	if list, err := os.ReadDir(outside); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// Answers that may be better next time are asked for again, others not; nothing is followed elsewhere.
func TestRepetitions(t *testing.T) {
	for _, test := range []struct{ status, requests int }{{500, attempts}, {503, attempts}, {429, attempts}, {403, 1}, {400, 1}, {301, 1}, {307, 1}} {
		n := 0
		url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n++
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(test.status)
		}))
		b, err := Open("s3://bucket?endpoint="+url, Options{Getenv: env(map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"})})
		if err != nil {
			t.Fatal(err)
		}
		b.pause = time.Millisecond
		if err := b.Put(t.Context(), "x", []byte("x")); err == nil || n != test.requests {
			t.Errorf("status %d: %d requests, want %d, %v", test.status, n, test.requests, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := Open("s3://bucket?endpoint=http://127.0.0.1:1", Options{Getenv: env(map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"})})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(ctx, "x", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Credentials come from variables, a role, a container or a file, in this order, and are fetched once.
func TestAmazonCredentials(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	file := filepath.Join(t.TempDir(), "credentials")
	if err := errors.Join(os.WriteFile(token, []byte("a token\n"), 0o600), os.WriteFile(file, []byte("[other]\naws_access_key_id=no\n[default]\naws_access_key_id = of-file\naws_secret_access_key = k\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	fetched := 0
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched++
		until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		if r.Method == http.MethodPost {
			if r.FormValue("WebIdentityToken") != "a token" || r.FormValue("RoleArn") != "arn" {
				t.Errorf("form %v", r.Form)
			}
			fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>of-role</AccessKeyId><SecretAccessKey>k</SecretAccessKey><SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, until)
			return
		}
		if r.Header.Get("Authorization") != "a token" {
			t.Errorf("authorization %q", r.Header.Get("Authorization"))
		}
		fmt.Fprintf(w, `{"AccessKeyId":"of-container","SecretAccessKey":"k","Token":"t","Expiration":%q}`, until)
	}))
	variables := map[string]string{
		"AWS_ACCESS_KEY_ID": "of-variables", "AWS_SECRET_ACCESS_KEY": "k",
		"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn", "AWS_ENDPOINT_URL_STS": url,
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": url, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token,
		"AWS_SHARED_CREDENTIALS_FILE": file,
	}
	for _, step := range []struct{ want, without string }{
		{"of-variables", "AWS_ACCESS_KEY_ID"}, {"of-role", "AWS_ROLE_ARN"}, {"of-container", "AWS_CONTAINER_CREDENTIALS_FULL_URI"}, {"of-file", "AWS_SHARED_CREDENTIALS_FILE"},
	} {
		k := &amazonKeys{client: http.DefaultClient, getenv: env(variables), region: "r"}
		fetched = 0
		for range 2 {
			c, err := k.get(t.Context())
			if err != nil || c.AccessKeyID != step.want {
				t.Errorf("%q, want %q: %v", c.AccessKeyID, step.want, err)
			}
		}
		if fetched > 1 {
			t.Errorf("%s: fetched %d times", step.want, fetched)
		}
		delete(variables, step.without)
	}
	if _, err := (&amazonKeys{client: http.DefaultClient, getenv: env(variables)}).get(t.Context()); !errors.Is(err, errCredentials) {
		t.Errorf("none: %v", err)
	}
}
