//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentvm/internal/network/preview/previewtest"
)

// startUI starts agentvm ui and returns a link to its page, and the directory of the store. VMs of these names are removed at the end.
func startUI(t *testing.T, names ...string) (link, store string) {
	t.Helper()
	store, mirror, _ := testStore(t)
	server := exec.Command("agentvm", "ui")
	server.Env = append(os.Environ(), "AGENTVM_STORE="+store, "AGENTVM_ALPINE_MIRROR="+mirror)
	server.Dir = t.TempDir()
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(os.Interrupt)
		_ = server.Wait()
		agentvm(t, append([]string{"rm", "-f"}, names...)...)
	})
	link, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(link), store
}

// TestUI uses the page in a real browser: starts a VM, types in its terminal, allows a host that was denied, opens a preview, forks. The guest
// tries to do things to the page meanwhile.
func TestUI(t *testing.T) {
	if testing.Short() {
		t.Skip("boots VMs")
	}
	browser := previewtest.Chromium(t)
	link, _ := startUI(t, "page", "page-fork")
	p := previewtest.Open(t, browser, link, 1180, 740)

	p.Await(`document.querySelector(".welcome")`)
	p.Click("New")
	for name, value := range map[string]string{"name": "page", "image": "busybox", "memory": "128", "mode": "allowlist", "allow": "allowed.example:443"} {
		p.Fill(name, value)
	}
	p.Click("Start")
	p.Await(`document.querySelector("#vms .dot.running") && location.hash.includes("page")`)

	p.Click("Terminal")
	const rows = `document.querySelector(".xterm-rows")?.textContent`
	p.Await(rows + `?.includes("#")`)
	p.Type(`cd /root; echo '<script>' > '<img src=x onerror=alert(1)>'; printf '\033]0;owned\007\033]52;c;b3duZWQ=\007\033]8;;http://evil.example/\007'` + "\n")
	p.Type("nslookup denied.example; echo typed-$((40+2))\n")
	p.Await(rows + `?.includes("typed-42")`)
	if title := p.Eval("document.title"); title != "page – agentvm" {
		t.Errorf("the guest has changed the title to %q", title)
	}

	p.Click("Network")
	p.Await(`document.body.innerText.includes("denied.example")`)
	p.Click("Allow")
	p.Await(`document.querySelector("#panel .guest.mono").textContent.includes("denied.example")`)
	if got := agentvm(t, "net", "explain", "-n", "page", "denied.example:80"); strings.Contains(got, "not in the allowlist") {
		t.Errorf("after Allow: %s", got)
	}

	p.Click("Files")
	p.Await(`document.querySelector("main").innerText.includes("<img src=x onerror=alert(1)>")`)
	if p.Eval(`document.querySelector("main img, main script")`) != nil {
		t.Error("a file's name has become HTML")
	}
	p.Eval(`[...document.querySelectorAll("td button")].find(b => b.textContent.includes("<img")).click()`)
	p.Await(`document.querySelector("textarea")?.value === "<script>\n"`)
	p.Eval(`document.querySelector("textarea").value = "not saved"`)
	agentvm(t, "net", "allow", "-n", "page", "later.example")
	p.Await(`(window.since ??= performance.now()) + 5000 < performance.now()`) // the page has read the list of VMs again
	if got := p.Eval(`document.querySelector("textarea")?.value`); got != "not saved" {
		t.Errorf("the editor has %q after a change of the policy", got)
	}

	p.Click("Previews")
	p.Await(`document.querySelector("#panel input")`)
	p.Eval(`document.querySelector("#panel input").value = 8080`)
	p.Click("Create")
	p.Await(`document.querySelector("a.open-preview")`)
	preview, _ := p.Eval(`document.querySelector("a.open-preview").href`).(string)

	p.Click("Fork")
	p.Fill("name", "page-fork")
	p.Click("Fork")
	p.Await(`location.hash.includes("page-fork") && document.querySelector("main .dot.running")`)
	p.Await(`document.querySelector("main").innerText.includes("from vm page")`)

	p.Go(preview)
	p.Await(`document.body?.innerText.includes("listens on port 8080")`) // no program does, which the preview says
	// The link has been used, and another tab has no session.
	other := previewtest.Open(t, browser, link, 800, 600)
	other.Await(`document.body?.innerText.includes("No session")`)
}

// TestUINewVM makes a VM with a directory and a port of the host, corrects what the page says is wrong, and reads the VM's log, into which someone
// has brought HTML.
func TestUINewVM(t *testing.T) {
	if testing.Short() {
		t.Skip("boots VMs")
	}
	browser := previewtest.Chromium(t)
	link, store := startUI(t, "mounted")
	p := previewtest.Open(t, browser, link, 1180, 900)
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "hello"), []byte("of the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	const html = "<img src=x onerror=document.title='owned'>"

	p.Await(`document.querySelector(".welcome")`)
	p.Click("New")
	p.Fill("mode", "none")
	for _, field := range []struct{ name, wrong, says, right string }{
		{"name", "No Name", "up to 63 of a-z", "mounted"},
		{"image", "docker-daemon:" + html, "agentvm does not read docker-daemon", "busybox"},
		{"memory", "much", "MiB, as 512", "128"},
		{"memory", "1", "at least", "128"},
		{"mounts", "src:/src", "whole path", host + ":/src:ro\n" + host + ":/copy:cow"},
		{"mounts", host + "/" + html + ":/src", "does not exist", host + ":/src:ro\n" + host + ":/copy:cow"},
		{"ports", "8080", "GUESTPORT", "0:8080"},
		{"allow", "pypi.org", "choose allowlist", ""},
	} {
		p.Fill(field.name, field.wrong)
		p.Click("Start")
		at := fmt.Sprintf("document.querySelector('.problem[data-of=%q]:not([hidden])')?.textContent", field.name)
		p.Await(fmt.Sprintf("%s?.includes(%q)", at, field.says))
		if p.Eval("document.activeElement.name") != field.name {
			t.Errorf("%s: the focus is at %v", field.name, p.Eval("document.activeElement.name"))
		}
		p.Fill(field.name, field.right)
	}
	picture(t, p, "new")
	p.Click("Start")
	p.Await(`document.querySelector("#vms .dot.running") && location.hash.includes("mounted") && !document.querySelector("dialog[open]")`)
	p.Await(`/127\.0\.0\.1:\d+/.test(document.querySelector("#panel dl").textContent)`)
	got := agentvm(t, "exec", "-n", "mounted", "cat /src/hello; echo x >/src/hello || echo read-only; echo changed >/copy/hello && cat /copy/hello")
	for _, want := range []string{"of the host", "read-only", "changed"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q has no %q", got, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(host, "hello")); err != nil || string(text) != "of the host" {
		t.Errorf("the host's file is %q (%v)", text, err)
	}

	p.Click("Log")
	p.Await(`document.querySelector(".log")?.textContent.includes("level=INFO")`)
	log, err := os.OpenFile(filepath.Join(store, "vms", "mounted", "daemon.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	write := func(text string) {
		t.Helper()
		if _, err := log.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	wrong := map[string]string{
		"a line has become HTML":            `document.querySelector("main img, main script")`,
		"the title has changed":             `document.title !== "mounted – agentvm"`,
		"control characters are there":      `/[\x00-\x1f\u202e]/.test(document.querySelector(".log").textContent)`,
		"all lines are kept":                `document.querySelectorAll(".log div").length > 2000`,
		"the end is not in view":            `(l => l.scrollTop + l.clientHeight < l.scrollHeight - 4)(document.querySelector(".log"))`,
		"the page is wider than the window": `document.documentElement.scrollWidth > innerWidth`,
	}
	check := func(when string) {
		t.Helper()
		for what, is := range wrong {
			if p.Eval("!!("+is+")") == true {
				t.Errorf("%s: %s", when, what)
			}
		}
	}
	write("time=2026-11-29T00:00:00Z level=WARN msg=\"" + html + "\x1b]0;owned\a\u202e\"\n<script>document.title='owned'</script>\n" + strings.Repeat("x", 5000) + "\n")
	p.Await(`document.querySelector(".log .warn")?.textContent.includes("<img") && document.querySelector(".log").lastChild.textContent.startsWith("xxx")`)
	check("hostile lines")
	write(strings.Repeat("a line\n", 3000) + "last\n")
	p.Await(`document.querySelector(".log").lastChild.textContent === "last"`)
	check("many lines")
	p.Eval(`document.querySelector(".log").scrollTop = 0`)
	write("further\n")
	p.Await(`document.querySelector(".log").lastChild.textContent === "further"`)
	if p.Eval(`document.querySelector(".log").scrollTop`) != 0.0 {
		t.Error("who has scrolled up is taken to the end")
	}
	p.Click("Stop")
	p.Await(`document.querySelector("main .dot.stopped") && document.querySelector(".log")?.textContent.includes("level=INFO")`)
	picture(t, p, "log")
}

// picture keeps what the page looks like in the folder that AGENTVM_TEST_PICTURES names, if it does.
func picture(t *testing.T, p *previewtest.Page, name string) {
	t.Helper()
	if folder := os.Getenv("AGENTVM_TEST_PICTURES"); folder != "" {
		p.Picture(filepath.Join(folder, name+".png"))
	}
}
