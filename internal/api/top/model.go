package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/vm"
)

// maxConnections is how many events are kept.
const maxConnections = 1000

// Readings are as far apart as these, by the number of VMs and by whether anybody looks.
const (
	shortPause  = time.Second
	pausePerVM  = 200 * time.Millisecond
	hiddenPause = 10 * time.Second
)

// pane is the part of the screen that the arrows move in.
type pane int

const (
	paneVMs pane = iota
	paneConnections
)

// page is what the screen shows.
type page int

const (
	pageMain page = iota
	pageText      // a log, an output or the help
	pageJobs
)

// model is the state of the monitor.
type model struct {
	ctx    context.Context
	config Config

	width, height int
	reading       Reading
	connections   []Connection // newest last
	err           error        // of the last reading
	message       string       // about the last action
	hidden        bool         // the terminal is not looked at

	pane     pane
	name     string // of the selected VM
	selected int    // connection, counted from the newest; it stays at what it was
	only     bool   // connections of the selected VM only
	denied   bool   // only what was denied
	asks     *question

	page  page
	title string
	lines []string
	top   int // first line that is shown, or -1 for the end
	jobs  []vm.JobInfo
	job   int
}

// question is asked before something is done that cannot be undone.
type question struct {
	text string
	yes  tea.Cmd
}

func newModel(ctx context.Context, c Config) *model {
	return &model{ctx: ctx, config: c, width: 80, height: 24}
}

type (
	readingMsg struct {
		reading Reading
		err     error
	}
	readNowMsg struct{}
	doneMsg    struct { // an action has ended
		text string
		err  error
	}
	textMsg struct {
		title, text string
		err         error
	}
	jobsMsg struct {
		name string
		list []vm.JobInfo
		err  error
	}
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.read }

func (m *model) read() tea.Msg {
	r, err := m.config.Source.Read(m.ctx)
	return readingMsg{r, err}
}

// pause is the time until the next reading.
func (m *model) pause() time.Duration {
	if m.hidden {
		return hiddenPause
	}
	return max(shortPause, time.Duration(len(m.reading.VMs))*pausePerVM)
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.FocusMsg:
		m.hidden = false
	case tea.BlurMsg:
		m.hidden = true
	case readNowMsg:
		return m, m.read
	case readingMsg:
		m.take(msg)
		return m, tea.Tick(m.pause(), func(time.Time) tea.Msg { return readNowMsg{} })
	case doneMsg:
		m.message = msg.text
		if msg.err != nil {
			m.message = errorText(msg.err)
		}
	case textMsg:
		if msg.err != nil {
			m.message = errorText(msg.err)
			break
		}
		m.page, m.title, m.top = pageText, msg.title, -1
		m.lines = strings.Split(strings.TrimRight(msg.text, "\n"), "\n")
	case jobsMsg:
		if msg.err != nil {
			m.message = errorText(msg.err)
			break
		}
		slices.Reverse(msg.list) // newest first
		m.page, m.title, m.jobs, m.job = pageJobs, msg.name, msg.list, 0
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

func errorText(err error) string { return "error: " + err.Error() }

// take takes a reading over.
func (m *model) take(msg readingMsg) {
	if m.err = msg.err; msg.err != nil {
		return
	}
	before := len(m.shownConnections())
	m.reading = msg.reading
	m.connections = append(m.connections, msg.reading.Connections...)
	if n := len(m.connections); n > maxConnections {
		m.connections = slices.Clone(m.connections[n-maxConnections:])
	}
	if m.pane == paneConnections { // what is selected stays selected while new ones come
		m.selected = min(m.selected+max(0, len(m.shownConnections())-before), max(0, len(m.shownConnections())-1))
	}
	if m.index() < 0 && len(m.reading.VMs) > 0 {
		m.name = m.reading.VMs[0].Name
	}
}

// index returns that of the selected VM, or -1.
func (m *model) index() int {
	return slices.IndexFunc(m.reading.VMs, func(v VM) bool { return v.Name == m.name })
}

// shownConnections are those that the filters let through, newest last.
func (m *model) shownConnections() []Connection {
	if !m.only && !m.denied {
		return m.connections
	}
	var list []Connection
	for _, c := range m.connections {
		if (!m.only || c.VM == m.name) && (!m.denied || c.Verdict == egress.VerdictDeny) {
			list = append(list, c)
		}
	}
	return list
}

// key does what a key means.
func (m *model) key(key string) tea.Cmd {
	if key == "ctrl+c" {
		return tea.Quit
	}
	if q := m.asks; q != nil {
		m.asks = nil
		if key == "y" {
			return q.yes
		}
		m.message = "not done"
		return nil
	}
	m.message = ""
	switch m.page {
	case pageText:
		return m.textKey(key)
	case pageJobs:
		return m.jobsKey(key)
	}
	switch key {
	case "q":
		return tea.Quit
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-10)
	case "pgdown":
		m.move(10)
	case "tab":
		m.pane = 1 - m.pane
		m.selected = 0
	case "v":
		m.only, m.selected = !m.only, 0
	case "n":
		m.denied, m.selected = !m.denied, 0
	case "a", "d":
		return m.change(key == "a", false)
	case "A", "D":
		return m.change(key == "A", true)
	case "?", "h":
		return func() tea.Msg { return textMsg{title: "keys", text: helpText} }
	}
	return m.vmKey(key)
}

// vmKey does what a key means for the selected VM.
func (m *model) vmKey(key string) tea.Cmd {
	i := m.index()
	if i < 0 {
		return nil
	}
	v, source := m.reading.VMs[i], m.config.Source
	switch key {
	case "s", "enter":
		if m.config.Shell == nil {
			return nil
		}
		return tea.Exec(shell{func() error { return m.config.Shell(v.Name) }}, func(err error) tea.Msg {
			return doneMsg{"the shell in " + v.Name + " has ended", err}
		})
	case "p":
		if v.State == client.Paused {
			return m.act(v.Name+" runs again", func() error { return source.Resume(m.ctx, v.Name) })
		}
		return m.act(v.Name+" is paused", func() error { return source.Pause(m.ctx, v.Name) })
	case "x":
		m.asks = &question{"stop " + v.Name + "? y stops it, any other key does not", m.act(v.Name+" was stopped", func() error { return source.Stop(m.ctx, v.Name) })}
	case "l":
		return func() tea.Msg {
			text, err := source.Log(m.ctx, v.Name)
			return textMsg{"log of " + v.Name, string(text), err}
		}
	case "J":
		return func() tea.Msg {
			list, err := source.Jobs(m.ctx, v.Name)
			return jobsMsg{v.Name, list, err}
		}
	}
	return nil
}

func (m *model) act(done string, do func() error) tea.Cmd {
	return func() tea.Msg { return doneMsg{done, do()} }
}

// shell runs on the terminal while the monitor leaves it alone.
type shell struct{ run func() error }

func (s shell) Run() error        { return s.run() }
func (shell) SetStdin(io.Reader)  {}
func (shell) SetStdout(io.Writer) {}
func (shell) SetStderr(io.Writer) {}

// move moves the selection.
func (m *model) move(by int) {
	if m.pane == paneConnections {
		m.selected = max(0, min(m.selected+by, len(m.shownConnections())-1))
		return
	}
	if n := len(m.reading.VMs); n > 0 {
		m.name = m.reading.VMs[max(0, min(m.index()+by, n-1))].Name
	}
}

// about returns the connection that a key is about: the selected one, or else the newest that can be allowed, or that was let through.
func (m *model) about(allow bool) (Connection, bool) {
	list := m.shownConnections()
	if m.pane == paneConnections {
		if i := len(list) - 1 - m.selected; i >= 0 {
			return list[i], true
		}
		return Connection{}, false
	}
	for _, c := range slices.Backward(list) {
		if allow && c.Allowable() || !allow && c.Verdict == egress.VerdictAllow && c.Kind != egress.KindPolicy {
			return c, true
		}
	}
	return Connection{}, false
}

// change allows or denies what a connection was about, for its VM while it runs, or in the project file.
func (m *model) change(allow, project bool) tea.Cmd {
	c, found := m.about(allow)
	if !found {
		m.message = "there is no connection to allow or deny"
		return nil
	}
	rule, err := c.AsRule()
	if err != nil {
		m.message = "no rule can name " + c.Target()
		return nil
	}
	if allow && !c.Allowable() {
		m.message = "no rule would allow it: " + c.Message
		if c.Verdict != egress.VerdictDeny {
			m.message = rule.String() + " was not denied"
		}
		return nil
	}
	if project {
		if m.config.WriteRule == nil {
			return nil
		}
		return func() tea.Msg {
			text, err := m.config.WriteRule(rule, allow)
			return doneMsg{text, err}
		}
	}
	return func() tea.Msg {
		cut, err := m.config.Source.Change(m.ctx, c.VM, rule, allow)
		if errors.Is(err, client.ErrNotRunning) {
			err = fmt.Errorf("%s does not run: A and D change agentvm.toml", c.VM)
		}
		what := "denied"
		if allow {
			what = "allowed"
		}
		text := fmt.Sprintf("%s: %s is %s until it stops", c.VM, rule, what)
		if cut > 0 {
			text += fmt.Sprintf(", %d connections were cut", cut)
		}
		return doneMsg{text, err}
	}
}

func (m *model) textKey(key string) tea.Cmd {
	rows := m.bodyRows()
	last := max(0, len(m.lines)-rows)
	at := m.top
	if at < 0 {
		at = last
	}
	switch key {
	case "q", "esc", "?", "h", "left":
		m.page = pageMain
	case "up", "k":
		at--
	case "down", "j":
		at++
	case "pgup":
		at -= rows
	case "pgdown", "space":
		at += rows
	case "g", "home":
		at = 0
	case "G", "end":
		at = last
	}
	m.top = max(0, min(at, last))
	return nil
}

func (m *model) jobsKey(key string) tea.Cmd {
	switch key {
	case "q", "esc", "left":
		m.page = pageMain
	case "up", "k":
		m.job = max(0, m.job-1)
	case "down", "j":
		m.job = max(0, min(m.job+1, len(m.jobs)-1))
	case "enter", "l":
		if m.job >= len(m.jobs) {
			return nil
		}
		name, id := m.title, m.jobs[m.job].ID
		return func() tea.Msg {
			text, err := m.config.Source.Output(m.ctx, name, id)
			return textMsg{"output of job " + id + " of " + name, string(text), err}
		}
	}
	return nil
}
