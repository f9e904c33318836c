package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"agentvm/client"
)

const fetchLong = `Sends an HTTP request to a server in a running VM, and prints the body of the answer. The request reaches only 127.0.0.1 or ::1 in the VM:
not to the host, not to the network, and not through the VM's network policy. Redirects are printed and not followed.

Exit codes: 0 when there was an answer; 22 when its status was 400 or more and --fail is given; 1 when there was none.`

const fetchExample = `  agentvm fetch dev 3000 /
  agentvm fetch dev 3000 /items -X PUT -H 'Content-Type: application/json' -d '{"a":1}'
  agentvm fetch dev 3000 /upload -d @file.bin --fail
  agentvm fetch dev 3000 /big -o big.bin`

// exitStatusFailed is curl's code for an answer that says that something went wrong.
const exitStatusFailed = 22

// fetchFlags are the flags of fetch.
type fetchFlags struct {
	method, data, output string
	headers              []string
	include, fail        bool
}

func (c *cli) fetchCommand() *cobra.Command {
	var f fetchFlags
	command := &cobra.Command{
		Use: "fetch [flags] NAME PORT PATH", Short: "Send an HTTP request to a server in a VM", Long: fetchLong, Example: fetchExample,
		Args: counted(3, 3), ValidArgsFunction: completeNames(1),
	}
	flags := command.Flags()
	flags.StringVarP(&f.method, "request", "X", "", "the request's `METHOD` (default GET, with --data POST)")
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "a header of the request, as 'KEY: VALUE' (may be repeated)")
	flags.StringVarP(&f.data, "data", "d", "", "the request's body: `DATA`, or @FILE, or @- for standard input")
	flags.BoolVarP(&f.include, "include", "i", false, "print the answer's status and headers before its body")
	flags.StringVarP(&f.output, "output", "o", "", "write the body to a `FILE`")
	flags.BoolVar(&f.fail, "fail", false, "exit with 22 and print no body when the status is 400 or more")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		port, err := guestPort(args[1])
		if err != nil {
			return err
		}
		request, body, err := f.newRequest(port, args[2], flags.Changed("data"), c.stdin)
		if err != nil {
			return err
		}
		defer body.Close()
		s := newSession(shellInterruptWindow)
		ctx := s.begin(cmd.Context())
		defer s.end()
		return s.explain(withVM(ctx, args[0], func(v *client.VM) error {
			return c.fetch(ctx, v, request.WithContext(ctx), &f)
		}))
	}
	return command
}

// newRequest makes the request. body is to be closed, whatever became of the request.
func (f *fetchFlags) newRequest(port uint16, path string, hasData bool, stdin *os.File) (r *http.Request, body io.Closer, err error) {
	if !strings.HasPrefix(path, "/") {
		return nil, nil, fmt.Errorf("path %q: want one that begins with a slash, as /index.html", path)
	}
	data, size, err := f.body(hasData, stdin)
	if err != nil {
		return nil, nil, err
	}
	method := f.method
	if method == "" {
		method = http.MethodGet
		if hasData {
			method = http.MethodPost
		}
	}
	r, err = http.NewRequest(method, "http://localhost:"+strconv.Itoa(int(port))+path, data)
	if err == nil {
		r.ContentLength = size
		err = f.setHeaders(r, hasData)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("request: %w", err), data.Close())
	}
	return r, data, nil
}

// body returns the request's body and its length, -1 when that is not known. An empty body is http.NoBody.
func (f *fetchFlags) body(hasData bool, stdin *os.File) (io.ReadCloser, int64, error) {
	name, isFile := strings.CutPrefix(f.data, "@")
	switch {
	case !hasData || f.data == "":
		return http.NoBody, 0, nil
	case !isFile:
		return io.NopCloser(strings.NewReader(f.data)), int64(len(f.data)), nil
	case name == "-":
		return readAhead(stdin)
	}
	file, err := openHostFile(name, os.O_RDONLY)
	if err != nil {
		return nil, 0, fmt.Errorf("--data: %w", err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a directory", name)
	case info.Mode().IsRegular() && info.Size() == 0:
		return http.NoBody, 0, file.Close()
	case info.Mode().IsRegular():
		return file, info.Size(), nil
	default:
		return file, -1, nil
	}
	return nil, 0, errors.Join(fmt.Errorf("--data: %w", err), file.Close())
}

// knownBody is the number of bytes of standard input up to which the body is read before the request is sent, so that its length is known:
// small servers want that. A longer body is sent as it comes.
const knownBody = 1 << 20

func readAhead(stdin *os.File) (io.ReadCloser, int64, error) {
	first, err := io.ReadAll(io.LimitReader(stdin, knownBody))
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("--data: standard input: %w", err)
	case len(first) == 0:
		return http.NoBody, 0, nil
	case len(first) < knownBody:
		return io.NopCloser(bytes.NewReader(first)), int64(len(first)), nil
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(first), stdin)), -1, nil
}

func (f *fetchFlags) setHeaders(r *http.Request, hasData bool) error {
	r.Header.Set("User-Agent", "agentvm/"+version)
	r.Header.Set("Accept", "*/*")
	if hasData {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded") // as curl
	}
	given := make(map[string]bool)
	for _, text := range f.headers {
		key, value, found := strings.Cut(text, ":")
		key, value = http.CanonicalHeaderKey(strings.TrimSpace(key)), strings.TrimSpace(value)
		switch {
		case !found || key == "":
			return fmt.Errorf("--header %q: want 'KEY: VALUE'", text)
		case key == "Host":
			r.Host = value
			continue
		case !given[key]:
			r.Header.Del(key)
		}
		given[key] = true
		r.Header.Add(key, value)
	}
	return nil
}

// fetch sends the request and prints the answer as it comes.
func (c *cli) fetch(ctx context.Context, v *client.VM, r *http.Request, f *fetchFlags) error {
	web := *v.HTTPClient()
	web.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := web.Do(r)
	if err != nil {
		return explainFetch(v.Name(), r, err)
	}
	defer answer.Body.Close()
	bad := f.fail && answer.StatusCode >= http.StatusBadRequest
	if bad {
		fmt.Fprintf(c.stderr, "agentvm: the server on port %s of %s answered %s\n", r.URL.Port(), v.Name(), printable(answer.Status))
	}
	if err := c.printAnswer(answer, f, bad); err != nil {
		return err
	}
	if bad {
		return exitStatus(exitStatusFailed)
	}
	return ctx.Err()
}

// printAnswer prints the head where that is wanted, and the body unless it is an error's.
func (c *cli) printAnswer(answer *http.Response, f *fetchFlags, bad bool) (err error) {
	to := c.stdout
	if f.output != "" && !bad {
		if to, err = createHostFile(f.output); err != nil {
			return fmt.Errorf("--output: %w", err)
		}
		defer func() { err = errors.Join(err, to.Close()) }()
	}
	if f.include {
		var head bytes.Buffer
		fmt.Fprintf(&head, "%s %s\r\n", answer.Proto, answer.Status)
		_ = answer.Header.Write(&head) // into memory
		head.WriteString("\r\n")
		if _, err := to.Write(head.Bytes()); err != nil {
			return err
		}
	}
	if bad {
		return nil
	}
	if _, err := io.Copy(to, answer.Body); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// explainFetch leaves out what is the same in all errors, and says what to do.
func explainFetch(name string, r *http.Request, err error) error {
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // without the whole URL
	}
	what := fmt.Sprintf("fetch from port %s of %s", r.URL.Port(), name)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: %w (agentvm ports %s lists what listens)", what, syscall.ECONNREFUSED, name)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		err = op.Err // where to is said
	}
	return fmt.Errorf("%s: %w", what, err)
}
