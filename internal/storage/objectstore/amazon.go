package objectstore

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// errCredentials means that there are none for a store.
var errCredentials = errors.New("no credentials for the object store")

// renewBefore is how long before their end temporary credentials are replaced.
const renewBefore = 5 * time.Minute

// amazonKeys finds Amazon's credentials, in this order: variables, a role by a token of Kubernetes (IRSA), a container's (ECS, EKS Pod
// Identity), the user's file.
type amazonKeys struct {
	client *http.Client
	getenv func(string) string
	region string

	mu   sync.Mutex
	last aws.Credentials
}

func (k *amazonKeys) get(ctx context.Context) (aws.Credentials, error) {
	k.mu.Lock() // also while they are fetched: all callers need them
	defer k.mu.Unlock()
	if k.last.HasKeys() && (!k.last.CanExpire || time.Until(k.last.Expires) > renewBefore) {
		return k.last, nil
	}
	c, err := k.find(ctx)
	if err != nil {
		return c, err
	}
	k.last = c
	return c, nil
}

func (k *amazonKeys) find(ctx context.Context) (aws.Credentials, error) {
	c := aws.Credentials{AccessKeyID: k.getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: k.getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: k.getenv("AWS_SESSION_TOKEN")}
	token, role := k.getenv("AWS_WEB_IDENTITY_TOKEN_FILE"), k.getenv("AWS_ROLE_ARN")
	container := k.getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
	if relative := k.getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"); relative != "" {
		container = "http://169.254.170.2" + relative
	}
	switch {
	case c.HasKeys():
		return c, nil
	case token != "" && role != "":
		return k.assume(ctx, token, role)
	case container != "":
		return k.ofContainer(ctx, container)
	}
	return k.ofFile()
}

// assume exchanges a token for a role's credentials.
func (k *amazonKeys) assume(ctx context.Context, tokenFile, role string) (c aws.Credentials, err error) {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errCredentials, err)
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {role},
		"RoleSessionName": {cmp.Or(k.getenv("AWS_ROLE_SESSION_NAME"), "agentvm")}, "WebIdentityToken": {strings.TrimSpace(string(token))},
	}
	at := cmp.Or(k.getenv("AWS_ENDPOINT_URL_STS"), "https://sts."+k.region+".amazonaws.com")
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(form.Encode()))
	if err != nil {
		return c, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	var out struct {
		Credentials struct {
			AccessKeyId, SecretAccessKey, SessionToken string
			Expiration                                 time.Time
		} `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	}
	if err := fetch(k.client, r, func(b []byte) error { return xml.Unmarshal(b, &out) }); err != nil {
		return c, fmt.Errorf("role %s: %w", role, err)
	}
	got := out.Credentials
	return aws.Credentials{AccessKeyID: got.AccessKeyId, SecretAccessKey: got.SecretAccessKey, SessionToken: got.SessionToken, CanExpire: true, Expires: got.Expiration}, nil
}

func (k *amazonKeys) ofContainer(ctx context.Context, at string) (c aws.Credentials, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return c, err
	}
	token := k.getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
	if file := k.getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return c, fmt.Errorf("%w: %w", errCredentials, err)
		}
		token = strings.TrimSpace(string(b))
	}
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	var out struct {
		AccessKeyId, SecretAccessKey, Token string
		Expiration                          time.Time
	}
	if err := fetch(k.client, r, func(b []byte) error { return json.Unmarshal(b, &out) }); err != nil {
		return c, fmt.Errorf("credentials of the container: %w", err)
	}
	return aws.Credentials{AccessKeyID: out.AccessKeyId, SecretAccessKey: out.SecretAccessKey, SessionToken: out.Token, CanExpire: !out.Expiration.IsZero(), Expires: out.Expiration}, nil
}

// ofFile reads the user's credentials file.
func (k *amazonKeys) ofFile() (c aws.Credentials, err error) {
	name := k.getenv("AWS_SHARED_CREDENTIALS_FILE")
	if home := k.getenv("HOME"); name == "" && home != "" {
		name = filepath.Join(home, ".aws", "credentials")
	}
	none := fmt.Errorf("%w: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", errCredentials)
	f, err := os.Open(name)
	if err != nil {
		return c, none
	}
	defer f.Close()
	profile, in := "["+cmp.Or(k.getenv("AWS_PROFILE"), "default")+"]", false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			in = line == profile
		}
		name, value, ok := strings.Cut(line, "=")
		if !in || !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			c.AccessKeyID = value
		case "aws_secret_access_key":
			c.SecretAccessKey = value
		case "aws_session_token":
			c.SessionToken = value
		}
	}
	if !c.HasKeys() {
		return c, none
	}
	return c, nil
}

// fetch sends a request for credentials.
func fetch(client *http.Client, r *http.Request, decode func([]byte) error) error {
	answer, err := send(client, r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	b, err := readAll(answer.Body, answer.ContentLength, 1<<20)
	if err != nil {
		return err
	}
	return decode(b)
}
