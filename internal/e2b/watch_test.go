package e2b

import (
	"fmt"
	"io/fs"
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
	streamed := make(chan string, 1)
	go func() {
		streamed <- strings.Join(h.stream(id, "filesystem.Filesystem/WatchDir", `{"path":"/w","recursive":true,"includeEntry":true}`, "Connect-Timeout-Ms", "10000"), "\n")
	}()
	code, text := h.rpc(id, "filesystem.Filesystem/CreateWatcher", `{"path":"/w"}`)
	watcher := strings.TrimSuffix(strings.TrimPrefix(text, `{"watcherId":"`), "\"}\n")
	if code != 200 || len(watcher) < 20 {
		t.Fatal(code, text)
	}
	ask := fmt.Sprintf(`{"watcherId":%q}`, watcher)
	if code, text := h.rpc(id, "filesystem.Filesystem/GetWatcherEvents", ask); code != 200 || text != "{\"events\":[]}\n" {
		t.Error(code, text)
	}
	time.Sleep(time.Second)
	run("echo new >/w/below/new; rm /w/old; chmod 700 /w/below")
	if code, text := h.rpc(id, "filesystem.Filesystem/GetWatcherEvents", ask); code != 200 ||
		text != `{"events":[{"name":"below","type":"EVENT_TYPE_CHMOD"},{"name":"old","type":"EVENT_TYPE_REMOVE"}]}`+"\n" {
		t.Error(code, text)
	}
	got := <-streamed
	for _, want := range []string{`0 {"start":{}}`, `{"filesystem":{"name":"below/new","type":"EVENT_TYPE_CREATE","entry":{"name":"new"`, `"name":"old","type":"EVENT_TYPE_REMOVE"}`, deadlineExceeded} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nhas no %s", got, want)
		}
	}
	for range maxWatches - 1 {
		if code, text := h.rpc(id, "filesystem.Filesystem/CreateWatcher", `{"path":"/w"}`); code != 200 {
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
