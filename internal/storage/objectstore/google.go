package objectstore

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// openGoogle speaks the XML interface, which is Amazon's: with an HMAC key in GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY, else with the
// application's default credentials (a file in GOOGLE_APPLICATION_CREDENTIALS, Workload Identity, the metadata server).
func openGoogle(u *url.URL, client *http.Client, getenv func(string) string) (driver, error) {
	query, err := options(u, "endpoint")
	if err != nil {
		return nil, err
	}
	base, err := url.Parse(cmp.Or(query.Get("endpoint"), "https://storage.googleapis.com"))
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("endpoint %.200q: want https://HOST", query.Get("endpoint"))
	}
	s := &s3{client: client, base: *base.JoinPath(u.Host)}
	if keys := (aws.Credentials{AccessKeyID: getenv("GS_ACCESS_KEY_ID"), SecretAccessKey: getenv("GS_SECRET_ACCESS_KEY")}); keys.HasKeys() {
		sign := signer.NewSigner(func(o *signer.SignerOptions) { o.DisableURIPathEscaping = true })
		s.authorize = func(ctx context.Context, r *http.Request, hash string) error {
			return sign.SignHTTP(ctx, keys, r, hash, "s3", "auto", time.Now())
		}
		return s, nil
	}
	var mu sync.Mutex
	var tokens oauth2.TokenSource
	s.authorize = func(_ context.Context, r *http.Request, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if tokens == nil {
			// The source outlives the request.
			found, err := google.FindDefaultCredentials(context.WithValue(context.Background(), oauth2.HTTPClient, client), "https://www.googleapis.com/auth/devstorage.read_write")
			if err != nil {
				return fmt.Errorf("%w: %w", errCredentials, err)
			}
			tokens = found.TokenSource
		}
		token, err := tokens.Token()
		if err != nil {
			return err
		}
		token.SetAuthHeader(r)
		return nil
	}
	return s, nil
}
