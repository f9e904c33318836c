package previewtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// Page is a page in a browser that a test looks at and uses, by the DevTools protocol. It belongs to one goroutine.
type Page struct {
	t       testing.TB
	c       *websocket.Conn
	session string
	number  int
}

// pageTime is how long a page may take for one thing. The host may be very busy.
const pageTime = 60 * time.Second

// Open opens a page in a browser of its own, which ends with the test.
func Open(t testing.TB, browser, url string, width, height int) *Page {
	t.Helper()
	profile, stop := browse(t, browser, "about:blank", fmt.Sprintf("--window-size=%d,%d", width, height), "--hide-scrollbars")
	t.Cleanup(stop)
	var lines []string
	for deadline := time.Now().Add(pageTime); len(lines) < 2; time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(profile, "DevToolsActivePort")) // which is there when it listens
		if lines = strings.Fields(string(text)); len(lines) < 2 && time.Now().After(deadline) {
			t.Fatal("the browser does not start")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), pageTime)
	defer cancel()
	c, answer, err := websocket.Dial(ctx, "ws://127.0.0.1:"+lines[0]+lines[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body != nil {
		_ = answer.Body.Close()
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	c.SetReadLimit(64 << 20)
	p := &Page{t: t, c: c}
	var made struct{ TargetID, SessionID string }
	p.do("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	p.do("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &made)
	p.session = made.SessionID
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	p.Go(url)
	return p
}

// do calls a method and waits for its result. Events are left out.
func (p *Page) do(method string, parameters map[string]any, into any) {
	p.t.Helper()
	p.number++
	message := map[string]any{"id": p.number, "method": method, "params": parameters}
	if p.session != "" {
		message["sessionId"] = p.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), pageTime)
	defer cancel()
	if err := p.c.Write(ctx, websocket.MessageText, text); err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
	for {
		_, text, err := p.c.Read(ctx)
		if err != nil {
			p.t.Fatalf("%s: %v", method, err)
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			p.t.Fatal(err)
		}
		if answer.ID != p.number {
			continue
		}
		if answer.Error != nil {
			p.t.Fatalf("%s: %s", method, answer.Error.Message)
		}
		if into != nil {
			if err := json.Unmarshal(answer.Result, into); err != nil {
				p.t.Fatal(err)
			}
		}
		return
	}
}

// Go opens another page in its place.
func (p *Page) Go(url string) {
	p.t.Helper()
	p.do("Page.navigate", map[string]any{"url": url}, nil)
}

// Eval returns the value of an expression of JavaScript, when it is a promise what that becomes.
func (p *Page) Eval(expression string) any {
	p.t.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	p.do("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &out)
	if e := out.ExceptionDetails; e != nil {
		p.t.Fatalf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	return out.Result.Value
}

// Await waits until an expression of JavaScript is true.
func (p *Page) Await(expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(pageTime); p.Eval("!!("+expression+")") != true; time.Sleep(30 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("after %v not yet: %s; the page shows:\n%v", pageTime, expression, p.Eval("document.body.innerText"))
		}
	}
}

// Click clicks at the first button or link whose text is label, once there is one that can be used.
func (p *Page) Click(label string) {
	p.t.Helper()
	find := fmt.Sprintf(`[...(document.querySelector("dialog[open]") ?? document).querySelectorAll("button, a")].find(e => e.textContent.trim() === %q && !e.disabled && e.offsetParent)`, label)
	p.Await(find)
	p.Eval(find + ".click()")
}

// Fill puts a value into the field of a name.
func (p *Page) Fill(name, value string) {
	p.t.Helper()
	field := fmt.Sprintf("document.querySelector('[name=%q]')", name)
	p.Await(field)
	p.Eval(fmt.Sprintf("%s.value = %q", field, value))
}

// Type types a text where the focus is; a line's end is the key Enter.
func (p *Page) Type(text string) {
	p.t.Helper()
	for line := range strings.Lines(text) {
		body, enter := strings.CutSuffix(line, "\n")
		if body != "" {
			p.do("Input.insertText", map[string]any{"text": body}, nil)
		}
		if enter {
			for _, kind := range []string{"keyDown", "keyUp"} {
				p.do("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}, nil)
			}
		}
	}
}

// Dark says whether the page's user prefers dark colours.
func (p *Page) Dark(yes bool) {
	p.t.Helper()
	value := "light"
	if yes {
		value = "dark"
	}
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// Picture writes what the page looks like into a PNG file.
func (p *Page) Picture(path string) {
	p.t.Helper()
	var out struct{ Data string }
	p.do("Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &out)
	b, err := base64.StdEncoding.DecodeString(out.Data)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
