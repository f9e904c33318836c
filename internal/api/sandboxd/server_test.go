package sandboxd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"agentvm/images/storetest"
	pb "agentvm/internal/api/sandboxd/processv1"
	"agentvm/vm"
)

// kit is the VM that the tests share.
var kit struct {
	store storetest.Store
	vm    *vm.VM
	once  sync.Once
}

func TestMain(m *testing.M) {
	os.Exit(kit.store.Main(func() int {
		code := m.Run()
		if kit.vm != nil {
			_ = kit.vm.Close()
		}
		return code
	}))
}

// sandbox is a server and its clients.
type sandbox struct {
	t         *testing.T
	server    *Server
	url, grpc string
	processes caller
	conn      *grpc.ClientConn
	stop      func() // and wait
}

func start(t *testing.T) *sandbox {
	t.Helper()
	image := kit.store.Image(t)
	kit.once.Do(func() {
		v, err := vm.Start(context.Background(), vm.Config{Image: image, StoreDir: kit.store.Dir(), Memory: 128 << 20})
		if err != nil {
			t.Fatal(err)
		}
		kit.vm = v
	})
	if kit.vm == nil {
		t.Fatal("there is no VM")
	}
	s, err := New(t.Context(), Options{
		VM: kit.vm, Root: "/work/" + strings.ToLower(path.Base(t.Name())), Hosts: []string{"box.example"}, Shutdown: 10 * time.Second,
		Metadata: map[string]string{"SANDBOX_ID": "one", "SANDBOX_api_key": "hidden"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	at, served := make(chan [2]net.Addr, 1), make(chan error, 1)
	go func() {
		served <- s.Serve(ctx, "127.0.0.1", 0, 0, func(rest, rpc net.Addr) { at <- [2]net.Addr{rest, rpc} })
	}()
	var addresses [2]net.Addr
	select {
	case addresses = <-at:
	case err := <-served:
		t.Fatal(err)
	}
	b := &sandbox{t: t, server: s, url: "http://" + addresses[0].String(), grpc: addresses[1].String()}
	b.conn, err = grpc.NewClient(b.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		t.Fatal(err)
	}
	b.processes = caller{b.conn}
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { _ = b.conn.Close(); b.stop(); http.DefaultClient.CloseIdleConnections() })
	return b
}

// caller calls the service by grpc-go, as clients do.
type caller struct{ conn *grpc.ClientConn }

func (c caller) Execute(ctx context.Context, in *pb.ExecuteRequest) (*pb.ExecuteResponse, error) {
	out := new(pb.ExecuteResponse)
	return out, c.conn.Invoke(ctx, service+"Execute", in, out)
}

func (c caller) WriteStdin(ctx context.Context, in *pb.WriteStdinRequest) (*pb.WriteStdinResponse, error) {
	out := new(pb.WriteStdinResponse)
	return out, c.conn.Invoke(ctx, service+"WriteStdin", in, out)
}

func (c caller) SendSignal(ctx context.Context, in *pb.SendSignalRequest) (*pb.SendSignalResponse, error) {
	out := new(pb.SendSignalResponse)
	return out, c.conn.Invoke(ctx, service+"SendSignal", in, out)
}

func (c caller) ResizeTTY(ctx context.Context, in *pb.ResizeTTYRequest) (*pb.ResizeTTYResponse, error) {
	out := new(pb.ResizeTTYResponse)
	return out, c.conn.Invoke(ctx, service+"ResizeTTY", in, out)
}

func (c caller) Start(ctx context.Context, in *pb.StartRequest) (grpc.ServerStreamingClient[pb.StartResponse], error) {
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"Start")
	if err != nil {
		return nil, err
	}
	typed := &grpc.GenericClientStream[pb.StartRequest, pb.StartResponse]{ClientStream: stream}
	return typed, errors.Join(stream.SendMsg(in), stream.CloseSend())
}

// do sends a request, and returns the answer's status and body.
func (b *sandbox) do(method, path string, body io.Reader, header ...string) (int, string, http.Header) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer.StatusCode, string(text), answer.Header
}

func (b *sandbox) execute(args ...string) (*pb.ExecuteResponse, error) {
	return b.processes.Execute(b.t.Context(), &pb.ExecuteRequest{Config: &pb.ProcessConfig{Command: args}})
}

func (b *sandbox) shell(line string) string {
	b.t.Helper()
	r, err := b.execute("/bin/sh", "-c", line)
	if err != nil || r.ExitCode != 0 {
		b.t.Fatalf("%s: %v, %v", line, r, err)
	}
	return strings.TrimSpace(string(r.Stdout))
}

func TestExecute(t *testing.T) {
	b := start(t)
	dir := b.server.root
	r, err := b.processes.Execute(t.Context(), &pb.ExecuteRequest{Config: &pb.ProcessConfig{
		Command: []string{"/bin/sh", "-c", `pwd; echo "$A"; echo no >&2; exit 3`}, EnvVars: map[string]string{"A": "b c"},
	}})
	if err != nil || r.ExitCode != 3 || string(r.Stdout) != dir+"\nb c\n" || string(r.Stderr) != "no\n" {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := b.execute("/bin/sh", "-c", "kill -9 $$"); err != nil || r.ExitCode != -1 {
		t.Errorf("killed: %v, %v", r, err)
	}
	if r, err := b.execute("/bin/sh", "-c", "exit 127"); err != nil || r.ExitCode != 127 {
		t.Errorf("127 of its own: %v, %v", r, err)
	}
	b.shell("mkdir sub; ln -s sub link; ln -s /etc out; echo text >plain")
	for cwd, want := range map[string]string{"": dir, "sub": dir + "/sub", "link": dir + "/sub", dir + "/sub": dir + "/sub"} {
		r, err := b.processes.Execute(t.Context(), &pb.ExecuteRequest{Config: &pb.ProcessConfig{Command: []string{"pwd"}, Cwd: &cwd}})
		if err != nil || string(r.Stdout) != want+"\n" {
			t.Errorf("cwd %q: %v, %v", cwd, r, err)
		}
	}
	for cwd, want := range map[string]codes.Code{
		"/etc": codes.PermissionDenied, "..": codes.PermissionDenied, "out": codes.PermissionDenied, "sub/../../x": codes.PermissionDenied, dir + "x": codes.PermissionDenied,
		"nope": codes.NotFound, "plain": codes.NotFound,
	} {
		_, err := b.processes.Execute(t.Context(), &pb.ExecuteRequest{Config: &pb.ProcessConfig{Command: []string{"pwd"}, Cwd: &cwd}})
		if status.Code(err) != want {
			t.Errorf("cwd %q: %v, want %v", cwd, err, want)
		}
	}
	for _, test := range []struct {
		args []string
		want codes.Code
	}{
		{nil, codes.InvalidArgument}, {[]string{""}, codes.InvalidArgument}, {[]string{"a\x00"}, codes.InvalidArgument}, {[]string{"no-such-program"}, codes.NotFound},
		{[]string{"/no/such"}, codes.NotFound}, {[]string{"./plain"}, codes.PermissionDenied},
		{[]string{"/bin/sh", "-c", "head -c 5000000 /dev/zero"}, codes.ResourceExhausted},
	} {
		if r, err := b.execute(test.args...); status.Code(err) != test.want {
			t.Errorf("%q: %v, %v; want %v", test.args, r, err, test.want)
		}
		if test.want == codes.ResourceExhausted {
			continue
		}
		began := time.Now()
		stream, err := b.processes.Start(t.Context(), &pb.StartRequest{Config: &pb.ProcessConfig{Command: test.args}})
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil && time.Since(began) >= startTime {
			continue // the guest is slow: the answer began before its refusal was known
		}
		if status.Code(err) != test.want {
			t.Errorf("start %q: %v; want %v", test.args, err, test.want)
		}
	}
}

// follow starts a process and returns its number.
func (b *sandbox) follow(ctx context.Context, in *pb.StartRequest) (grpc.ServerStreamingClient[pb.StartResponse], int32) {
	b.t.Helper()
	stream, err := b.processes.Start(ctx, in)
	if err != nil {
		b.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetInit().GetProcessId() == 0 {
		b.t.Fatalf("%v, %v", first, err)
	}
	return stream, first.GetInit().ProcessId
}

// rest reads a process's output to its end.
func (b *sandbox) rest(stream grpc.ServerStreamingClient[pb.StartResponse]) (stdout, stderr string, code int32) {
	b.t.Helper()
	for {
		event, err := stream.Recv()
		if err != nil {
			b.t.Fatalf("after %q, %q: %v", stdout, stderr, err)
		}
		stdout, stderr = stdout+string(event.GetStdout()), stderr+string(event.GetStderr())
		if end := event.GetExit(); end != nil {
			if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
				b.t.Errorf("after the end: %v", err)
			}
			return stdout, stderr, end.ExitCode
		}
	}
}

func TestStart(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	config := func(args ...string) *pb.ProcessConfig { return &pb.ProcessConfig{Command: args} }

	stream, id := b.follow(ctx, &pb.StartRequest{Config: config("cat")})
	big := strings.Repeat("0123456789abcdef", 1<<14)
	for _, text := range []string{"one\n", big} {
		if _, err := b.processes.WriteStdin(ctx, &pb.WriteStdinRequest{ProcessId: id, Payload: &pb.WriteStdinRequest_Input{Input: []byte(text)}}); err != nil {
			t.Fatal(err)
		}
	}
	eof := &pb.WriteStdinRequest{ProcessId: id, Payload: &pb.WriteStdinRequest_Eof{Eof: &emptypb.Empty{}}}
	if _, err := b.processes.WriteStdin(ctx, eof); err != nil {
		t.Fatal(err)
	}
	if out, _, code := b.rest(stream); out != "one\n"+big || code != 0 {
		t.Errorf("%d bytes, %d", len(out), code)
	}
	gone := []error{nil, nil}
	_, gone[0] = b.processes.WriteStdin(ctx, eof)
	_, gone[1] = b.processes.SendSignal(ctx, &pb.SendSignalRequest{ProcessId: id, Signal: pb.Signal_SIGNAL_SIGINT})
	for _, err := range gone {
		if status.Code(err) != codes.NotFound {
			t.Errorf("a process that has ended: %v", err)
		}
	}

	stream, _ = b.follow(ctx, &pb.StartRequest{Config: config("/bin/sh", "-c", "echo 'agentvm: of its own' >&2; echo out; exit 127")})
	if out, text, code := b.rest(stream); out != "out\n" || text != "agentvm: of its own\n" || code != 127 {
		t.Errorf("%q, %q, %d", out, text, code)
	}

	stream, id = b.follow(ctx, &pb.StartRequest{Config: config("/bin/sh", "-c", "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done")})
	if event, err := stream.Recv(); err != nil || string(event.GetStdout()) != "ready\n" {
		t.Fatal(event, err)
	}
	if _, err := b.processes.SendSignal(ctx, &pb.SendSignalRequest{ProcessId: id}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if _, err := b.processes.ResizeTTY(ctx, &pb.ResizeTTYRequest{ProcessId: id, Cols: 1, Rows: 1}); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	if _, err := b.processes.SendSignal(ctx, &pb.SendSignalRequest{ProcessId: id, Signal: pb.Signal_SIGNAL_SIGTERM}); err != nil {
		t.Error(err)
	}
	if out, _, code := b.rest(stream); out != "caught\n" || code != 5 {
		t.Errorf("%q, %d", out, code)
	}

	stream, id = b.follow(ctx, &pb.StartRequest{Config: config("/bin/sh", "-c", "stty size; read x; stty size"), Pty: &pb.PTY{Cols: 91, Rows: 31}})
	if event, err := stream.Recv(); err != nil || !strings.Contains(string(event.GetStdout()), "31 91") {
		t.Fatal(event, err)
	}
	if _, err := b.processes.ResizeTTY(ctx, &pb.ResizeTTYRequest{ProcessId: id, Cols: 70000, Rows: 1}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if _, err := b.processes.ResizeTTY(ctx, &pb.ResizeTTYRequest{ProcessId: id, Cols: 77, Rows: 22}); err != nil {
		t.Error(err)
	}
	if _, err := b.processes.WriteStdin(ctx, &pb.WriteStdinRequest{ProcessId: id, Payload: &pb.WriteStdinRequest_Input{Input: []byte("\n")}}); err != nil {
		t.Error(err)
	}
	if out, _, _ := b.rest(stream); !strings.Contains(out, "22 77") {
		t.Errorf("%q", out)
	}
}

// until waits until a condition of the VM holds.
func (b *sandbox) until(what, line string) {
	b.t.Helper()
	for range 200 {
		if r, err := kit.vm.Exec(b.t.Context(), line); err == nil && r.ExitCode == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.t.Errorf("not so: %s", what)
}

// TestClientGoes: processes end with the call, however many clients go, and their places are free again.
func TestClientGoes(t *testing.T) {
	b := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	for range maxProcesses {
		b.follow(ctx, &pb.StartRequest{Config: &pb.ProcessConfig{Command: []string{"sleep", "7777"}}})
	}
	if _, err := b.execute("true"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	cancel()
	b.until("processes end with their clients", "! ps | grep '[s]leep 7777'")
	for range 200 {
		if left, _ := b.server.processes.List(); len(left) == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.shell("true")

	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := b.processes.Execute(short, &pb.ExecuteRequest{Config: &pb.ProcessConfig{Command: []string{"sleep", "7778"}}})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	b.until("a deadline ends the process", "! ps | grep '[s]leep 7778'")
}

// TestEnd: processes get SIGTERM, then SIGKILL, and the probe says that the server is ending.
func TestEnd(t *testing.T) {
	b := start(t)
	polite, _ := b.follow(t.Context(), &pb.StartRequest{Config: &pb.ProcessConfig{Command: []string{"/bin/sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"}}})
	stubborn, _ := b.follow(t.Context(), &pb.StartRequest{Config: &pb.ProcessConfig{Command: []string{"/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"}}})
	for _, stream := range []grpc.ServerStreamingClient[pb.StartResponse]{polite, stubborn} {
		if event, err := stream.Recv(); err != nil || string(event.GetStdout()) != "ready\n" {
			t.Fatal(event, err)
		}
	}
	if code, _, _ := b.do("GET", "/v1/health", nil); code != 200 {
		t.Error(code)
	}
	ended := make(chan struct{})
	go func() { b.stop(); close(ended) }()
	for !b.server.stopping.Load() {
		time.Sleep(time.Millisecond)
	}
	if code, body, _ := b.do("GET", "/v1/health", nil); code != 503 || !strings.Contains(body, "UNAVAILABLE") {
		t.Error(code, body)
	}
	if _, _, code := b.rest(polite); code != 9 {
		t.Error(code)
	}
	if _, _, code := b.rest(stubborn); code != -1 {
		t.Error(code)
	}
	<-ended
}

func TestFiles(t *testing.T) {
	b := start(t)
	want := func(method, path, body string, code int, contains string, header ...string) http.Header {
		t.Helper()
		got, text, h := b.do(method, path, strings.NewReader(body), header...)
		if got != code || !strings.Contains(text, contains) {
			t.Errorf("%s %s: %d %s; want %d %s", method, path, got, text, code, contains)
		}
		return h
	}
	want("PUT", "/v1/files/a/b%2Fc.txt?mode=0750&unknown=1", "0123456789", 204, "")
	if got := b.shell("stat -c %a a/b/c.txt"); got != "750" {
		t.Error(got)
	}
	modified := want("GET", "/v1/files/a/b/c.txt", "", 200, "0123456789").Get("Last-Modified")
	want("GET", "/v1/files/a/b/c.txt", "", 206, "345", "Range", "bytes=3-5")
	want("GET", "/v1/files/a/b/c.txt", "", 304, "", "If-Modified-Since", modified)
	want("GET", "/v1/files/a/b/c.txt", "", 416, "", "Range", "bytes=20-")
	want("HEAD", "/v1/files/a/b/c.txt", "", 200, "")
	want("HEAD", "/v1/files/a", "", 200, "")
	want("HEAD", "/v1/files/nope", "", 404, "")
	want("GET", "/v1/files/nope", "", 404, `"code":"NOT_FOUND"`)

	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	_ = parts.WriteField("other", "x")
	part, _ := parts.CreateFormFile("file", "name")
	_, _ = io.WriteString(part, "from a form")
	_ = parts.Close()
	want("PUT", "/v1/files/form", form.String(), 204, "", "Content-Type", parts.FormDataContentType())
	want("GET", "/v1/files/form", "", 200, "from a form")
	want("PUT", "/v1/files/form", "--x--\r\n", 400, "INVALID_ARGUMENT", "Content-Type", "multipart/form-data; boundary=x")
	for _, mode := range []string{"644", "0999", "01777", "", "-0644"} {
		want("PUT", "/v1/files/x?mode="+mode, "", 400, "INVALID_ARGUMENT")
	}
	want("PUT", "/v1/files/a", "", 400, "INVALID_ARGUMENT")

	b.shell("ln -s a/b/c.txt inside; ln -s /etc/passwd outside; ln -s nowhere dangling; ln -s loop loop; ln -s a dir; echo kept >/tmp/target; ln -s /tmp up")
	_, text, _ := b.do("GET", "/v1/files/", nil)
	var listing struct {
		Path    string
		Entries []entry
	}
	if err := json.Unmarshal([]byte(text), &listing); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range listing.Entries {
		names = append(names, fmt.Sprintf("%s %s %s", e.Name, e.Type, e.Mode))
	}
	if got := strings.Join(names, ", "); listing.Path != "/" || got != "a directory 0755, dir directory 0755, form file 0644, inside file 0750" {
		t.Errorf("%s: %s", listing.Path, got)
	}
	want("GET", "/v1/files/dir/b", "", 200, `"path":"/a/b"`)

	for _, outside := range []string{"../x", "%2e%2e/x", "a/../../x", "/etc/passwd", "%2Fetc%2Fpasswd", "outside", "up/target", "up/new", "loop"} {
		for _, method := range []string{"GET", "PUT"} {
			want(method, "/v1/files/"+outside, "", 403, "PERMISSION_DENIED")
		}
	}
	want("DELETE", "/v1/files/up/target", "", 403, "PERMISSION_DENIED")
	want("GET", "/v1/files/x%00", "", 400, "INVALID_ARGUMENT")
	if got := b.shell("cat /tmp/target; ls /tmp/new 2>/dev/null; true"); got != "kept" {
		t.Error(got)
	}

	want("DELETE", "/v1/files/a", "", 409, "CONFLICT")
	want("DELETE", "/v1/files/a?recursive=maybe", "", 400, "INVALID_ARGUMENT")
	want("DELETE", "/v1/files/nope", "", 404, "NOT_FOUND")
	want("DELETE", "/v1/files/inside", "", 204, "") // the link
	want("GET", "/v1/files/a/b/c.txt", "", 200, "0123456789")
	want("DELETE", "/v1/files/a?recursive=T", "", 204, "")
	want("DELETE", "/v1/files/", "", 409, "CONFLICT")
	want("DELETE", "/v1/files/?recursive=1", "", 204, "")
	want("GET", "/v1/files/", "", 200, `"entries":[]`)
	want("POST", "/v1/files/x", "", 405, "")
	want("GET", "/v1/metadata", "", 200, `{"env":{"SANDBOX_ID":"one"}}`)
}

// TestPagesOfOthers: no page of a browser uses the server, under whatever name, and its gRPC takes nothing that a browser can send.
func TestPagesOfOthers(t *testing.T) {
	b := start(t)
	for _, test := range []struct {
		want   int
		header []string
	}{
		{200, []string{"Host", "box.example:8080"}}, {200, []string{"Host", "localhost"}}, {200, []string{"Host", "[::1]:8080"}}, {421, []string{"Host", "attacker.example:8080"}},
		{421, []string{"Host", "127.0.0.1.attacker.example"}},
	} {
		if code, text, _ := b.do("GET", "/v1/health", nil, test.header...); code != test.want {
			t.Errorf("%v: %d %s", test.header, code, text)
		}
	}
	if code, _, _ := b.do("PUT", "/v1/files/x", strings.NewReader("x"), "Origin", "https://attacker.example"); code != 403 {
		t.Error(code)
	}
	if code, _, _ := b.do("DELETE", "/v1/files/x", nil, "Sec-Fetch-Site", "cross-site"); code != 403 {
		t.Error(code)
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+b.grpc+"/process.v1.ProcessService/Execute", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	if answer, err := http.DefaultClient.Do(r); err == nil && answer.StatusCode/100 == 2 {
		answer.Body.Close()
		t.Error("HTTP/1.1 has an answer from gRPC's port:", answer.Status)
	}
}

// TestSlowClient: an upload that stops ends.
func TestSlowClient(t *testing.T) {
	b := start(t)
	defer func(was time.Duration) { pieceTime = was }(pieceTime)
	pieceTime = 300 * time.Millisecond
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PUT /v1/files/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nsome"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if text, err := io.ReadAll(conn); err != nil || strings.Contains(string(text), " 204 ") {
		t.Errorf("%q, %v", text, err)
	}
}

func TestRefused(t *testing.T) {
	b := start(t)
	if _, err := New(t.Context(), Options{VM: kit.vm, Root: "work"}); err == nil {
		t.Error("a root that is not absolute")
	}
	for host, port := range map[string]uint16{"localhost": 0, "127.0.0.1": 8080} {
		if err := b.server.Serve(t.Context(), host, port, port, func(net.Addr, net.Addr) {}); err == nil {
			t.Errorf("%s, %d and %d", host, port, port)
		}
	}
}

// TestKinds: each kind of error has one status and code of files. Package rpc has the codes of processes.
func TestKinds(t *testing.T) {
	for err, want := range map[error]string{
		errors.New("no more is known"): "500 INTERNAL", fs.ErrInvalid: "400 INVALID_ARGUMENT", fs.ErrNotExist: "404 NOT_FOUND", fs.ErrExist: "409 CONFLICT",
		errEscapes: "403 PERMISSION_DENIED", &http.MaxBytesError{}: "413 RESOURCE_EXHAUSTED", os.ErrDeadlineExceeded: "408 DEADLINE_EXCEEDED",
		context.Canceled: "503 UNAVAILABLE", context.DeadlineExceeded: "504 DEADLINE_EXCEEDED",
	} {
		w := httptest.NewRecorder()
		writeFailure(w, err)
		var got failure
		if e := json.Unmarshal(w.Body.Bytes(), &got); e != nil || fmt.Sprint(w.Code, " ", got.Code) != want || got.Message != err.Error() {
			t.Errorf("%v: %d %s, want %s", err, w.Code, w.Body, want)
		}
	}
}

// http2 is a client of the port of gRPC.
func (b *sandbox) http2() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	b.t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// TestCalls: the port of gRPC refuses in the protocol of the call, and serves each.
func TestCalls(t *testing.T) {
	b := start(t)
	transport := b.http2()
	for _, test := range []struct {
		method, kind, body string
		header             []string
		want               string // status of HTTP, of gRPC, and a part of the body
	}{
		{"Execute", "application/json", `{"config":{"command":["echo","hello"]}}`, nil, "200  aGVsbG8K"},
		{"Start", "application/connect+json", "\x00\x00\x00\x00\x27" + `{"config":{"command":["echo","hello"]}}`, nil, `200  {"exit":{}}`},
		{"Execute", "application/grpc", "\x00\x00\x00\x00\x08\x0a\x06\x0a\x04true", nil, "200 0 "},
		{"Execute", "application/grpc-web", "\x00\x00\x00\x00\x08\x0a\x06\x0a\x04true", nil, "200  grpc-status: 0"},
		{"Execute", "text/plain", "x", nil, "415  "},
		{"Nothing", "application/grpc", "", nil, "200 12 "}, {"Nothing", "application/json", "{}", nil, "501  unimplemented"},
		{"Execute", "application/grpc", "", []string{"Origin", "https://attacker.example"}, "200 7 "},
		{"Execute", "application/json", "{}", []string{"Origin", "https://attacker.example"}, "403  another origin"},
		{"Execute", "application/grpc", "", []string{"Host", "attacker.example"}, "200 7 "},
		{"Start", "application/connect+json", "{}", []string{"Host", "attacker.example"}, "200  name it with --host"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+b.grpc+service+test.method, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", test.kind)
		for i := 0; i < len(test.header); i += 2 {
			if r.Header.Set(test.header[i], test.header[i+1]); test.header[i] == "Host" {
				r.Host = test.header[i+1]
			}
		}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		code := cmp.Or(answer.Trailer.Get("Grpc-Status"), answer.Header.Get("Grpc-Status"))
		head, body, _ := strings.Cut(strings.Replace(test.want, " ", "/", 1), " ")
		if fmt.Sprintf("%d/%s", answer.StatusCode, code) != head || !strings.Contains(string(text), body) || err != nil {
			t.Errorf("%s by %s with %v: %s, %q, %q, %v; want %s", test.method, test.kind, test.header, answer.Status, code, text, err, test.want)
		}
	}
}

// TestSlowCall: a call whose message stops ends, whether it was of gRPC or of Connect.
func TestSlowCall(t *testing.T) {
	b := start(t)
	defer func(was time.Duration) { pieceTime = was }(pieceTime)
	pieceTime = 300 * time.Millisecond
	transport := b.http2()
	for kind, want := range map[string]string{"application/grpc": "4", "application/json": ""} {
		body, rest := io.Pipe()
		defer rest.Close()
		go io.WriteString(rest, "\x00\x00\x00\x00\x10half")
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+b.grpc+service+"Execute", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		began := time.Now()
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(kind, err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		code := answer.Trailer.Get("Grpc-Status")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: the answer took %v", kind, took)
		}
		if code != want || code == "" && (answer.StatusCode != http.StatusGatewayTimeout || !bytes.Contains(text, []byte(`"deadline_exceeded"`))) {
			t.Errorf("%s: %s, grpc-status %q, %s, %v", kind, answer.Status, code, text, err)
		}
	}
}
