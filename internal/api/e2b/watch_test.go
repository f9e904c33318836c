package e2b

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentvm/vm"
)

func TestDifferences(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	file := vm.FileInfo{Mode: 0o644, Size: 3, Modified: at}
	with := func(change func(*vm.FileInfo)) vm.FileInfo {
		changed := file
		change(&changed)
		return changed
	}
	before := map[string]vm.FileInfo{
		"same": file, "gone": file, "written": file, "touched": file, "mode": file, "owner": file, "kind": file,
		"dir": {Mode: fs.ModeDir | 0o755, Size: 10, Modified: at}, "link": {Mode: fs.ModeSymlink | 0o777, Target: "a", Modified: at},
	}
	now := map[string]vm.FileInfo{
		"same": file, "written": with(func(i *vm.FileInfo) { i.Size = 4 }), "touched": with(func(i *vm.FileInfo) { i.Modified = at.Add(1) }),
		"mode": with(func(i *vm.FileInfo) { i.Mode = 0o600 }), "owner": with(func(i *vm.FileInfo) { i.UID = 1 }), "new": file, "empty": {Mode: 0o644, Modified: at},
		"kind": {Mode: fs.ModeDir | 0o755}, "dir": {Mode: fs.ModeDir | 0o755, Size: 20, Modified: at.Add(time.Hour)}, "link": {Mode: fs.ModeSymlink | 0o777, Target: "b", Modified: at},
	}
	var got []string
	for _, e := range differences(before, now) {
		got = append(got, e.Name+" "+strings.TrimPrefix(e.Type, "EVENT_TYPE_"))
	}
	want := []string{
		"empty CREATE", "gone REMOVE", "kind REMOVE", "kind CREATE", "link WRITE", "mode CHMOD", "new CREATE", "new WRITE", "owner CHMOD", "touched WRITE", "written WRITE",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := differences(now, now); len(got) != 0 {
		t.Error(got)
	}
}

// TestWatch watches directories of a VM as the SDKs do: by a stream, and by asking.
func TestWatch(t *testing.T) {
	h := serve(t, true)
	id := h.create(`{"templateID":"base"}`)
	run := func(line string) {
		t.Helper()
		got := h.stream(id, "process.Process/Start", fmt.Sprintf(`{"process":{"cmd":"/bin/sh","args":["-c",%q]},"stdin":false}`, line))
		if !strings.Contains(strings.Join(got, ""), `"exited":true,"status":"exit status 0"`) {
			t.Fatalf("%s: %q", line, got)
		}
	}
	run("mkdir -p /w/below; echo 1 >/w/old")
	const watch = `{"path":"/w","recursive":true,"includeEntry":true}`
	r, err := http.NewRequest("POST", h.url+"/filesystem.Filesystem/WatchDir", bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(watch))), watch...)))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/connect+json", "E2b-Sandbox-Id": id, "X-Access-Token": h.s.token(id), "Connect-Timeout-Ms": "120000",
	} {
		r.Header.Set(name, value)
	}
	streamed, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer streamed.Body.Close()
	got := ""
	await := func(wants ...string) {
		t.Helper()
		for part := make([]byte, 4096); slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(got, want) }); {
			n, err := streamed.Body.Read(part)
			if got += string(part[:n]); err != nil {
				t.Fatalf("%s\nhas not all of %q: %v", got, wants, err)
			}
		}
	}
	await(`{"start":{}}`)
	code, text := h.rpc(id, "filesystem.Filesystem/CreateWatcher", `{"path":"/w"}`)
	watcher := strings.TrimSuffix(strings.TrimPrefix(text, `{"watcherId":"`), `"}`)
	if code != 200 || len(watcher) < 20 {
		t.Fatal(code, text)
	}
	ask := fmt.Sprintf(`{"watcherId":%q}`, watcher)
	if code, text := h.rpc(id, "filesystem.Filesystem/GetWatcherEvents", ask); code != 200 || text != `{"events":[]}` {
		t.Error(code, text)
	}
	run("echo new >/w/below/new; rm /w/old; chmod 700 /w/below")
	if code, text := h.rpc(id, "filesystem.Filesystem/GetWatcherEvents", ask); code != 200 ||
		text != `{"events":[{"name":"below","type":"EVENT_TYPE_CHMOD"},{"name":"old","type":"EVENT_TYPE_REMOVE"}]}` {
		t.Error(code, text)
	}
	await(`{"filesystem":{"name":"below/new","type":"EVENT_TYPE_CREATE","entry":{"name":"new"`, `"name":"old","type":"EVENT_TYPE_REMOVE"}`)
	_ = streamed.Body.Close()
	if got := h.stream(id, "filesystem.Filesystem/WatchDir", watch, "Connect-Timeout-Ms", "1000"); !strings.Contains(strings.Join(got, ""), "deadline_exceeded") {
		t.Errorf("%q has no %s", got, "deadline_exceeded")
	}
	for made, end := 0, time.Now().Add(time.Minute); made < maxWatches-1; {
		code, text := h.rpc(id, "filesystem.Filesystem/CreateWatcher", `{"path":"/w"}`)
		if code == 200 {
			made++
		} else if code != 429 || time.Now().After(end) { // the stream that was left may not have ended yet
			t.Fatal(code, text)
		}
	}
	if code, text := h.rpc(id, "filesystem.Filesystem/CreateWatcher", `{"path":"/w"}`); code != 429 {
		t.Errorf("one more than there may be: %d %s", code, text)
	}
	if code, text := h.rpc(id, "filesystem.Filesystem/RemoveWatcher", ask); code != 200 {
		t.Error(code, text)
	}
	for _, c := range []struct {
		path string
		want int
	}{{"/w/below/new", 400}, {"/nowhere", 404}, {"/w", 200}, {"/w", 429}} {
		if code, text := h.rpc(id, "filesystem.Filesystem/CreateWatcher", fmt.Sprintf(`{"path":%q}`, c.path)); code != c.want {
			t.Errorf("%s: %d %s, want %d", c.path, code, text, c.want)
		}
	}
	if code, text := h.rpc(id, "filesystem.Filesystem/GetWatcherEvents", ask); code != 404 {
		t.Errorf("a watcher that was removed: %d %s", code, text)
	}
}
