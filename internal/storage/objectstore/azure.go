package objectstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// azureVersion is the version of the Blob service's REST interface.
const azureVersion = "2021-12-02"

// azure speaks the REST interface of Azure Blob Storage.
type azure struct {
	client    *http.Client
	base      url.URL // of the container
	sas       url.Values
	authorize func(ctx context.Context, r *http.Request) error
}

// openAzure reads account and endpoint from the URL, and credentials from AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or those of AKS' Workload
// Identity.
func openAzure(u *url.URL, client *http.Client, getenv func(string) string) (driver, error) {
	query, err := options(u, "account", "endpoint")
	if err != nil {
		return nil, err
	}
	account := cmp.Or(query.Get("account"), getenv("AZURE_STORAGE_ACCOUNT"))
	if !safe().MatchString(account) || strings.Contains(account, "/") {
		return nil, errors.New("the account is missing: add ?account=NAME, or set AZURE_STORAGE_ACCOUNT")
	}
	base, err := url.Parse(cmp.Or(query.Get("endpoint"), "https://"+account+".blob.core.windows.net"))
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("endpoint %.200q: want https://HOST", query.Get("endpoint"))
	}
	a := &azure{client: client, base: *base.JoinPath(u.Host)}
	switch key, sas := getenv("AZURE_STORAGE_KEY"), getenv("AZURE_STORAGE_SAS_TOKEN"); {
	case key != "":
		secret, err := base64.StdEncoding.DecodeString(key)
		if err != nil {
			return nil, fmt.Errorf("%w: AZURE_STORAGE_KEY is not in base64", errCredentials)
		}
		a.authorize = func(_ context.Context, r *http.Request) error {
			r.Header.Set("Authorization", "SharedKey "+account+":"+sharedKey(r, account, secret))
			return nil
		}
	case sas != "":
		if a.sas, err = url.ParseQuery(strings.TrimPrefix(sas, "?")); err != nil {
			return nil, fmt.Errorf("%w: AZURE_STORAGE_SAS_TOKEN is not a query", errCredentials)
		}
		a.authorize = func(context.Context, *http.Request) error { return nil }
	default:
		tokens := &azureTokens{client: client, getenv: getenv}
		a.authorize = func(ctx context.Context, r *http.Request) error {
			token, err := tokens.get(ctx)
			r.Header.Set("Authorization", "Bearer "+token)
			return err
		}
	}
	return a, nil
}

// sharedKey signs a request ("Authorize with Shared Key" of the REST reference).
func sharedKey(r *http.Request, account string, secret []byte) string {
	length := ""
	if r.ContentLength > 0 {
		length = strconv.FormatInt(r.ContentLength, 10)
	}
	lines := []string{r.Method, "", "", length, "", r.Header.Get("Content-Type"), "", "", "", "", "", ""}
	var own []string
	for name, values := range r.Header {
		if name := strings.ToLower(name); strings.HasPrefix(name, "x-ms-") {
			own = append(own, name+":"+strings.Join(values, ","))
		}
	}
	slices.Sort(own)
	resource := "/" + account + r.URL.EscapedPath()
	query := r.URL.Query()
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		values := slices.Sorted(slices.Values(query[name]))
		resource += "\n" + strings.ToLower(name) + ":" + strings.Join(values, ",")
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(strings.Join(slices.Concat(lines, own, []string{resource}), "\n")))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// azureTokens exchanges the token of a Kubernetes service account for one of Microsoft Entra.
type azureTokens struct {
	client *http.Client
	getenv func(string) string

	mu    sync.Mutex
	token string
	until time.Time
}

func (t *azureTokens) get(ctx context.Context) (string, error) {
	t.mu.Lock() // also while it is fetched: all callers need it
	defer t.mu.Unlock()
	if t.token != "" && time.Until(t.until) > renewBefore {
		return t.token, nil
	}
	file, tenant, id := t.getenv("AZURE_FEDERATED_TOKEN_FILE"), t.getenv("AZURE_TENANT_ID"), t.getenv("AZURE_CLIENT_ID")
	if file == "" || tenant == "" || id == "" {
		return "", fmt.Errorf("%w: set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN", errCredentials)
	}
	assertion, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errCredentials, err)
	}
	form := url.Values{
		"grant_type": {"client_credentials"}, "client_id": {id}, "scope": {"https://storage.azure.com/.default"}, "client_assertion": {string(assertion)},
		"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
	}
	at := strings.TrimSuffix(cmp.Or(t.getenv("AZURE_AUTHORITY_HOST"), "https://login.microsoftonline.com"), "/") + "/" + tenant + "/oauth2/v2.0/token"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	var out struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
	}
	if err := fetch(t.client, r, func(b []byte) error { return json.Unmarshal(b, &out) }); err != nil {
		return "", fmt.Errorf("token of Microsoft Entra: %w", err)
	}
	t.token, t.until = out.AccessToken, time.Now().Add(time.Duration(out.ExpiresIn)*time.Second)
	return t.token, nil
}

func (a *azure) do(ctx context.Context, method, key string, query url.Values, content []byte) (*http.Response, error) {
	at := a.base
	if key != "" {
		at = *at.JoinPath(key)
	}
	all := url.Values{}
	for _, part := range []url.Values{query, a.sas} {
		for name, values := range part {
			all[name] = values
		}
	}
	at.RawQuery = all.Encode()
	var body io.Reader = http.NoBody
	if len(content) > 0 {
		body = bytes.NewReader(content)
	}
	r, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-Ms-Version", azureVersion)
	r.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	if method == http.MethodPut {
		r.Header.Set("X-Ms-Blob-Type", "BlockBlob")
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	if err := a.authorize(ctx, r); err != nil {
		return nil, err
	}
	return send(a.client, r)
}

func (a *azure) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	answer, err := a.do(ctx, http.MethodGet, key, nil, nil)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return readAll(answer.Body, answer.ContentLength, limit)
}

func (a *azure) put(ctx context.Context, key string, content []byte) error {
	return drained(a.do(ctx, http.MethodPut, key, nil, content))
}

func (a *azure) head(ctx context.Context, key string) (Object, error) {
	answer, err := a.do(ctx, http.MethodHead, key, nil, nil)
	if err := drained(answer, err); err != nil {
		return Object{}, err
	}
	return headed(key, answer)
}

func (a *azure) list(ctx context.Context, prefix, after string) ([]Object, string, error) {
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}}
	if after != "" {
		query.Set("marker", after)
	}
	answer, err := a.do(ctx, http.MethodGet, "", query, nil)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	text, err := readAll(answer.Body, answer.ContentLength, maxList*5) // a page has up to 5,000 blobs
	if err != nil {
		return nil, "", err
	}
	var list struct {
		XMLName xml.Name `xml:"EnumerationResults"`
		Blobs   []struct {
			Name       string
			Properties struct {
				LastModified  string `xml:"Last-Modified"`
				ContentLength int64  `xml:"Content-Length"`
			}
		} `xml:"Blobs>Blob"`
		NextMarker string
	}
	if err := xml.Unmarshal(text, &list); err != nil {
		return nil, "", fmt.Errorf("the store's list: %w", err)
	}
	var page []Object
	for _, b := range list.Blobs {
		modified, err := http.ParseTime(b.Properties.LastModified)
		if err != nil {
			return nil, "", fmt.Errorf("the store's list: %w", err)
		}
		page = append(page, Object{b.Name, b.Properties.ContentLength, modified})
	}
	return page, list.NextMarker, nil
}

func (a *azure) remove(ctx context.Context, key string) error {
	return drained(a.do(ctx, http.MethodDelete, key, nil, nil))
}
