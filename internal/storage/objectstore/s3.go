package objectstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// s3 speaks the REST interface of Amazon S3 (API version 2006-03-01), which Google Cloud Storage has as its XML interface.
type s3 struct {
	client    *http.Client
	base      url.URL // of the bucket
	authorize func(ctx context.Context, r *http.Request, hash string) error
}

// openS3 reads region, endpoint and path-style from the URL, and the rest from the variables that Amazon's own programs use.
func openS3(u *url.URL, client *http.Client, getenv func(string) string) (driver, error) {
	query, err := options(u, "region", "endpoint", "path-style")
	if err != nil {
		return nil, err
	}
	region := cmp.Or(query.Get("region"), getenv("AWS_REGION"), getenv("AWS_DEFAULT_REGION"), "us-east-1")
	if !safe().MatchString(region) || strings.Contains(region, "/") {
		return nil, fmt.Errorf("region %.100q", region)
	}
	endpoint := cmp.Or(query.Get("endpoint"), getenv("AWS_ENDPOINT_URL_S3"), getenv("AWS_ENDPOINT_URL"))
	pathStyle := endpoint != "" || strings.Contains(u.Host, ".") // a certificate for *.s3 fits no bucket with a dot
	if text := query.Get("path-style"); text != "" {
		pathStyle = text == "true"
	}
	base, err := url.Parse(cmp.Or(endpoint, "https://s3."+region+".amazonaws.com"))
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fmt.Errorf("endpoint %.200q: want http://HOST:PORT or https://HOST", endpoint)
	}
	if pathStyle {
		base = base.JoinPath(u.Host)
	} else {
		base.Host = u.Host + "." + base.Host
	}
	keys := &amazonKeys{client: client, getenv: getenv, region: region}
	sign := signer.NewSigner(func(o *signer.SignerOptions) { o.DisableURIPathEscaping = true })
	return &s3{client, *base, func(ctx context.Context, r *http.Request, hash string) error {
		c, err := keys.get(ctx)
		if err != nil {
			return err
		}
		return sign.SignHTTP(ctx, c, r, hash, "s3", region, time.Now())
	}}, nil
}

// options returns the URL's query, which may have these names only.
func options(u *url.URL, names ...string) (url.Values, error) {
	query, err := url.ParseQuery(u.RawQuery)
	for name := range query {
		known := false
		for _, n := range names {
			known = known || n == name
		}
		if !known {
			return nil, fmt.Errorf("unknown option %.50q: want %s", name, strings.Join(names, ", "))
		}
	}
	return query, err
}

const maxList = 8 << 20 // bytes of one page of a list, which has up to 1,000 keys

func (s *s3) do(ctx context.Context, method, key string, query url.Values, content []byte) (*http.Response, error) {
	at := s.base.JoinPath(key)
	at.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	r, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if content == nil {
		r.Body = http.NoBody
	}
	sum := sha256.Sum256(content)
	hash := hex.EncodeToString(sum[:])
	r.Header.Set("X-Amz-Content-Sha256", hash)
	if err := s.authorize(ctx, r, hash); err != nil {
		return nil, err
	}
	return send(s.client, r)
}

// send sends a request. An answer that is not a success is a *statusError.
func send(client *http.Client, r *http.Request) (*http.Response, error) {
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 200 && answer.StatusCode < 300 {
		return answer, nil
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	var cause struct {
		Code, Message, Region string
	}
	_ = xml.Unmarshal(text, &cause) // none with HEAD
	if region := cmp.Or(cause.Region, answer.Header.Get("X-Amz-Bucket-Region")); region != "" && answer.StatusCode/100 == 3 {
		cause.Message += " (the bucket is in region " + region + ": add ?region=" + region + ")"
	}
	if code := answer.Header.Get("X-Ms-Error-Code"); code != "" {
		cause.Code = code
	}
	return nil, &statusError{answer.StatusCode, cause.Code, cause.Message}
}

func (s *s3) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	answer, err := s.do(ctx, http.MethodGet, key, nil, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return readAll(answer.Body, answer.ContentLength, limit)
}

func (s *s3) put(ctx context.Context, key string, content []byte) error {
	answer, err := s.do(ctx, http.MethodPut, key, nil, content)
	return drained(answer, err)
}

func drained(answer *http.Response, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10))
	return errors.Join(err, answer.Body.Close())
}

func (s *s3) head(ctx context.Context, key string) (Object, error) {
	answer, err := s.do(ctx, http.MethodHead, key, nil, nil)
	if err := drained(answer, err); err != nil {
		return Object{}, err
	}
	return headed(key, answer)
}

func headed(key string, answer *http.Response) (Object, error) {
	modified, err := http.ParseTime(answer.Header.Get("Last-Modified"))
	if err != nil {
		return Object{}, fmt.Errorf("the store does not say when the object was written: %w", err)
	}
	return Object{key, answer.ContentLength, modified}, nil
}

func (s *s3) list(ctx context.Context, prefix, after string) ([]Object, string, error) {
	query := url.Values{"list-type": {"2"}, "prefix": {prefix}}
	if after != "" {
		query.Set("continuation-token", after)
	}
	answer, err := s.do(ctx, http.MethodGet, "/", query, nil)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	text, err := readAll(answer.Body, answer.ContentLength, maxList)
	if err != nil {
		return nil, "", err
	}
	var list struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []struct {
			Key          string
			Size         int64
			LastModified time.Time
		}
		IsTruncated           bool
		NextContinuationToken string
	}
	if err := xml.Unmarshal(text, &list); err != nil {
		return nil, "", fmt.Errorf("the store's list: %w", err)
	}
	var page []Object
	for _, c := range list.Contents {
		page = append(page, Object{c.Key, c.Size, c.LastModified})
	}
	if !list.IsTruncated {
		return page, "", nil
	}
	if list.NextContinuationToken == "" {
		return nil, "", errors.New("the store's list is cut and does not say where it continues")
	}
	return page, list.NextContinuationToken, nil
}

func (s *s3) remove(ctx context.Context, key string) error {
	answer, err := s.do(ctx, http.MethodDelete, key, nil, nil)
	return drained(answer, err)
}
