//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/client"
	"agentvm/vm"
)

// measureProtocols runs the smallest command of a VM that lives on through each server, in turn with the same through Go's client, and calls of
// host commands. E2B's SDK is measured by E2B_MEASURE=1 make e2b-sdk.
func measureProtocols(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	if _, err := b.kit.agentvm(ctx, "start", liveVM, "--image", b.kit.image.Name, "--memory", fmt.Sprint(memory, "M")); err != nil {
		return err
	}
	defer func() { _, _ = b.kit.agentvm(context.WithoutCancel(ctx), "rm", "-f", liveVM) }()
	if err := measureServers(ctx, b); err != nil {
		return err
	}
	return errors.Join(measureHostCommands(ctx, b), measureSSH(ctx, b))
}

// measureServers compares `true` through /v1 and MCP with the library's.
func measureServers(ctx context.Context, b *bench) error {
	v, err := client.Open(ctx, b.kit.store, liveVM)
	if err != nil {
		return err
	}
	defer v.Close()
	server, err := b.startServer(ctx)
	if err != nil {
		return err
	}
	defer server.close()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: b.kit.command(ctx, "mcp", "--vm", liveVM)}, nil)
	if err != nil {
		return fmt.Errorf("agentvm mcp: %w", err)
	}
	defer session.Close()
	ways := []struct {
		name string
		run  func() error
		took samples
		bar  bar
	}{
		{"client", func() error { _, err := v.Run(ctx, vm.Command{Line: "true"}); return err }, nil, bar{}},
		{"`/v1`", func() error { return server.exec(ctx) }, nil, atMost(2)},
		{"MCP on standard input and output", func() error {
			r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "exec", Arguments: map[string]any{"command": "true"}})
			if err == nil && r.IsError {
				err = fmt.Errorf("exec has failed: %v", r.Content)
			}
			return err
		}, nil, atMost(3)},
	}
	for round := range 10 + b.rounds(100) {
		for i := range ways {
			began := time.Now()
			if err := ways[i].run(); err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			if round >= 10 { // the first ones fill caches
				ways[i].took = append(ways[i].took, milliseconds(time.Since(began)))
			}
		}
	}
	base := ways[0].took
	b.report.add(figure{page: protocolsPage, name: "`true` in a named VM through Go's client, median", unit: "ms", value: base.median(), spread: base})
	for _, w := range ways[1:] {
		above := w.took.less(base)
		b.report.add(figure{page: protocolsPage, name: "the same through " + w.name + ", above that", unit: "ms", value: above.median(), spread: above, bar: w.bar})
	}
	return measureStreams(ctx, b, server)
}

// measureSSH runs `true` by OpenSSH's client with what ssh-config prints: the first time, which makes the connection, and then whole processes that
// use it.
func measureSSH(ctx context.Context, b *bench) error {
	if err := needTool("ssh", "openssh-client"); err != nil {
		return err
	}
	config, err := b.kit.agentvm(ctx, "ssh-config", liveVM)
	if err != nil {
		return err
	}
	file := b.kit.path("ssh_config")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	host := liveVM + ".agentvm"
	defer func() {
		_ = exec.CommandContext(context.WithoutCancel(ctx), "ssh", "-F", file, "-O", "exit", host).Run() // or it lasts for a minute
	}()
	var first, later samples
	for i := range 1 + b.rounds(20) {
		began := time.Now()
		if out, err := exec.CommandContext(ctx, "ssh", "-F", file, host, "true").CombinedOutput(); err != nil {
			return fmt.Errorf("ssh: %w: %s", err, out)
		}
		if took := milliseconds(time.Since(began)); i == 0 {
			first = append(first, took)
		} else {
			later = append(later, took)
		}
	}
	b.report.add(figure{page: protocolsPage, name: "`ssh true`, the first, which connects", unit: "ms", value: first.median()})
	b.report.add(figure{page: protocolsPage, name: "`ssh true` afterwards, a process of OpenSSH's client", unit: "ms", value: later.median(), spread: later, bar: atMost(50)})
	return nil
}

// httpServer is a process of agentvm serve.
type httpServer struct {
	command  *exec.Cmd
	url, key string
}

func (b *bench) startServer(ctx context.Context) (*httpServer, error) {
	s := &httpServer{key: "a-key-of-the-bench"}
	file := b.kit.path("key")
	if err := os.WriteFile(file, []byte(s.key+"\n"), 0o600); err != nil {
		return nil, err
	}
	s.command = b.kit.command(ctx, "serve", "--listen", "127.0.0.1:0", "--key-file", file)
	text, err := s.command.StderrPipe()
	if err == nil {
		err = s.command.Start()
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(text)
	for s.url == "" && lines.Scan() {
		s.url = regexp.MustCompile(`http://\S+`).FindString(lines.Text())
	}
	if s.url == "" {
		s.close()
		return nil, fmt.Errorf("agentvm serve says no address: %w", lines.Err())
	}
	go func() { _, _ = io.Copy(io.Discard, text) }()
	return s, nil
}

func (s *httpServer) close() { _ = s.command.Process.Kill(); _ = s.command.Wait() }

// post calls an operation; the caller closes the body.
func (s *httpServer) post(ctx context.Context, path string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err == nil && answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		_ = answer.Body.Close()
		err = fmt.Errorf("%s: %s %s", path, answer.Status, text)
	}
	return answer, err
}

func (s *httpServer) exec(ctx context.Context) error {
	answer, err := s.post(ctx, "/v1/vms/"+liveVM+"/exec", map[string]any{"command": "true"})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return errors.Join(err, answer.Body.Close())
}

// measureStreams lets many commands write at once, each in its own stream of events, and checks that nothing is lost.
func measureStreams(ctx context.Context, b *bench, s *httpServer) error {
	const streams, bytesOfEach = 100, 1 << 20
	began := time.Now()
	var all sync.WaitGroup
	failed := make(chan error, streams)
	for range streams {
		all.Go(func() {
			answer, err := s.post(ctx, "/v1/vms/"+liveVM+"/exec", map[string]any{"command": fmt.Sprintf("yes 0123456789abcde | head -c %d", bytesOfEach)})
			if err != nil {
				failed <- err
				return
			}
			n, err := io.Copy(io.Discard, answer.Body)
			if err = errors.Join(err, answer.Body.Close()); err == nil && n < bytesOfEach {
				err = fmt.Errorf("%d bytes of %d came", n, bytesOfEach)
			}
			if err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		return fmt.Errorf("%d streams at once: %w", streams, err)
	}
	b.report.add(figure{page: protocolsPage, name: fmt.Sprintf("%d commands at once through `/v1`, 1 MiB of output each", streams), unit: "s", value: time.Since(began).Seconds()})
	return nil
}

// measureHostCommands compares VMs that call a command of the host with VMs that run /bin/true as often.
func measureHostCommands(ctx context.Context, b *bench) error {
	const times = 100
	var above samples
	for range b.rounds(5) {
		var took [2]time.Duration
		for i, command := range []string{"hostcommand", "/bin/true"} {
			began := time.Now()
			_, err := b.kit.agentvm(ctx, "exec", "-i=false", "--image", b.kit.image.Name, "--memory", fmt.Sprint(memory, "M"), "--bind", "hostcommand=true",
				fmt.Sprintf("i=0; while [ $i -lt %d ]; do %s || exit 1; i=$((i+1)); done", times, command))
			if err != nil {
				return err
			}
			took[i] = time.Since(began)
		}
		above = append(above, milliseconds(took[0]-took[1])/times)
	}
	b.report.add(figure{page: protocolsPage, name: "a call of a host command, above `/bin/true` in the guest", unit: "ms", value: above.median(), spread: above, bar: atMost(5)})
	return nil
}
