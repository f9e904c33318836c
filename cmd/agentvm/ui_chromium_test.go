//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agentvm/internal/preview/previewtest"
)

// TestUI uses the page in a real browser: starts a VM, types in its terminal, allows a host that was denied, opens a preview, forks. The guest
// tries to do things to the page meanwhile.
func TestUI(t *testing.T) {
	if testing.Short() {
		t.Skip("boots VMs")
	}
	browser := previewtest.Chromium(t)
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
		agentvm(t, "rm", "-f", "page", "page-fork")
	})
	link, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	link = strings.TrimSpace(link)
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
