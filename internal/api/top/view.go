package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/host/termtext"
)

const helpText = `up, down       select a VM; after Tab a connection
Tab            from the VMs to the connections, and back

a, d           allow or deny what is selected, or what was just denied or
               let through, in this VM until it stops
A, D           the same in agentvm.toml of this directory, for later starts
v              connections of the selected VM only
n              only what was denied

s, Enter       a shell in the VM; exit or ~. comes back here
l              the log of the VM's daemon
J              the VM's jobs and sidecars; Enter shows what one has written
p              pause the VM, or have it run again
x              stop the VM

q              leave

CPU and MEMORY are of the host, in processors and bytes; IN and OUT are
bytes per second through the VM's network; SIDECAR counts those that run.
The names of connections and processes are as the guest has chosen them.`

// Styles are of ECMA-48; the renderer leaves colours out where the terminal has none or NO_COLOR is set.
const (
	plain   = "\x1b[m"
	bold    = "\x1b[1m"
	dim     = "\x1b[2m"
	reverse = "\x1b[7m"
	red     = "\x1b[31m"
	green   = "\x1b[32m"
	yellow  = "\x1b[33m"
)

// nameWidth and sidecarWidth are columns; the sidecars take theirs from the names where a VM has some.
const (
	nameWidth    = 17
	sidecarWidth = len(" SIDECAR")
)

// vmTable is a table of VMs, its header first.
func vmTable(list []VM, now time.Time) (lines []string) {
	name, sidecars := nameWidth, slices.ContainsFunc(list, func(v VM) bool { return len(v.Sidecars) > 0 })
	side := func(string) string { return "" }
	if sidecars {
		name -= sidecarWidth
		side = func(text string) string { return " " + fit(text, sidecarWidth-1) }
	}
	lines = append(lines, "  "+fit("NAME", name)+side("SIDECAR")+" STATE      CPU  MEMORY    DISK    IN/s   OUT/s DENIED     UP")
	for _, v := range list {
		state := string(v.State)
		if v.Health != "" && v.Health != "healthy" && v.State == client.Running {
			state = v.Health
		}
		cpu, memory, in, out, up, denied := "", "", "", "", "", ""
		if !v.Started.IsZero() {
			up, denied = shortTime(now.Sub(v.Started)), fmt.Sprint(v.Denied)
			cpu, memory = fmt.Sprintf("%.0f%%", v.CPU*100), shortBytes(float64(v.Memory))
			in, out = shortBytes(v.Received), shortBytes(v.Sent)
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %s%s %s %5s %7s %7s %7s %7s %6s %6s", fit(v.Name, name), side(client.SidecarsText(v.Sidecars)), fit(state, 8), cpu, memory, shortBytes(float64(v.Disk)), in, out, denied, up), " "))
	}
	return lines
}

// shortBytes is a number of bytes in at most six characters.
func shortBytes(n float64) string {
	for _, unit := range []string{"B", "K", "M", "G", "T"} {
		switch {
		case n < 10 && unit != "B":
			return fmt.Sprintf("%.1f%s", n, unit)
		case n < 1000:
			return fmt.Sprintf("%.0f%s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.0fP", n)
}

// shortTime is a time in at most six characters.
func shortTime(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// fit makes a text of others exactly so many columns wide.
func fit(text string, width int) string {
	text = ansi.Truncate(termtext.Printable(text), width, "…")
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen, v.ReportFocus = true, true
	return v
}

// screen returns the lines of the screen, none wider than it.
func (m *model) screen() []string {
	var lines []string
	switch m.page {
	case pageText:
		lines = m.textPage()
	case pageJobs:
		lines = m.jobsPage()
	default:
		lines = m.mainPage()
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, m.height-1)], m.footer())
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], m.width, "")
	}
	return lines
}

func (m *model) footer() string {
	switch {
	case m.asks != nil:
		return reverse + " " + m.asks.text + " " + plain
	case m.message != "":
		return bold + termtext.Printable(m.message) + plain
	case m.err != nil:
		return red + termtext.Printable(errorText(m.err)) + plain
	case m.page != pageMain:
		return dim + "up/down move   Enter opens   q back" + plain
	}
	return dim + "a allow  d deny  A/D in agentvm.toml  s shell  l log  J jobs  ? help  q quit" + plain
}

// bodyRows is how many lines there are between the first and the last.
func (m *model) bodyRows() int { return max(1, m.height-2) }

func (m *model) mainPage() []string {
	running, cpu, memory := 0, 0.0, uint64(0)
	for _, v := range m.reading.VMs {
		if v.State == client.Running {
			running++
		}
		cpu, memory = cpu+v.CPU, memory+v.Memory
	}
	all := vmTable(m.reading.VMs, m.reading.At)
	lines := []string{
		fmt.Sprintf("%sagentvm%s  %d VMs, %d running   CPU %.0f%%   memory %s", bold, plain, len(m.reading.VMs), running, cpu*100, shortBytes(float64(memory))),
		dim + all[0] + plain,
	}
	all = all[1:]
	rows := min(len(all), max(3, (m.height-5)/2))
	first := window(m.index(), rows, len(all))
	for i := first; i < first+rows; i++ {
		lines = append(lines, m.mark(all[i], i == m.index(), m.pane == paneVMs, stateStyle(m.reading.VMs[i].State)))
	}
	if len(all) == 0 {
		lines = append(lines, "  no VM: agentvm start NAME makes one")
	}
	lines = append(lines, m.connectionsTitle(), dim+connectionHeader+plain)
	shown := m.shownConnections()
	rows = max(0, m.height-1-len(lines))
	first = 0
	if m.pane == paneConnections {
		first = window(m.selected, rows, len(shown))
	}
	for i := first; i < min(first+rows, len(shown)); i++ {
		c := shown[len(shown)-1-i]
		lines = append(lines, m.mark(m.connectionLine(c), m.pane == paneConnections && i == m.selected, true, verdictStyle(c.Verdict)))
	}
	return lines
}

// window returns the first of the rows that are shown of n, so that at is among them.
func window(at, rows, n int) int { return max(0, min(at-rows/2, n-rows)) }

// mark shows a line that is selected: also where there are no colours.
func (m *model) mark(line string, selected, focused bool, style string) string {
	switch {
	case selected && focused:
		return reverse + ">" + fit(line[1:], m.width-1) + plain
	case selected:
		return bold + ">" + line[1:] + plain
	}
	return style + line + plain
}

func stateStyle(s client.State) string {
	switch s {
	case client.Running:
		return ""
	case client.Failed, client.Crashed, client.Unreachable:
		return red
	case client.Stopped:
		return dim
	}
	return yellow
}

func verdictStyle(verdict string) string {
	switch verdict {
	case egress.VerdictDeny:
		return red
	case egress.VerdictAllow:
		return green
	}
	return dim
}

const connectionHeader = "  TIME     VM       WHAT  KIND DESTINATION              PROCESS   RULE"

func (m *model) connectionsTitle() string {
	title := "Connections"
	if m.only {
		title += " of " + m.name
	}
	if m.denied {
		title += ", denied"
	}
	return bold + title + plain
}

// connectionLine is an event in one line. What it is about gets the room that the screen has.
func (m *model) connectionLine(c Connection) string {
	why := c.Rule
	if c.Verdict == egress.VerdictDeny || why == "" {
		why = c.Reason
	}
	if c.Verdict == egress.VerdictClose {
		why = fmt.Sprintf("in %s, out %s", shortBytes(float64(c.Received)), shortBytes(float64(c.Sent)))
	}
	target, kind := c.Target(), c.Kind
	if c.Kind == egress.KindPolicy {
		target, kind = c.Message, "mode"
	}
	more := max(0, m.width-80)
	return fmt.Sprintf("  %s %s %s %s %s %s %s", c.Time.Local().Format("15:04:05"), fit(c.VM, 8), fit(c.Verdict, 5), fit(kind, 4), fit(target, 24+more/2), fit(c.Process, 9+more/6), fit(why, 14+more-more/2-more/6))
}

func (m *model) textPage() []string {
	lines := []string{bold + termtext.Printable(m.title) + plain}
	rows := m.bodyRows()
	first := m.top
	if last := max(0, len(m.lines)-rows); first < 0 || first > last {
		first = last
	}
	for _, line := range m.lines[first:min(first+rows, len(m.lines))] {
		lines = append(lines, ansi.Truncate(termtext.Printable(strings.ReplaceAll(strings.TrimSuffix(line, "\r"), "\t", "    ")), m.width, "…"))
	}
	return lines
}

func (m *model) jobsPage() []string {
	lines := []string{bold + "jobs of " + m.title + plain, dim + "  ID       STATE      TIME   OUTPUT COMMAND" + plain}
	rows := max(1, m.height-3)
	first := window(m.job, rows, len(m.jobs))
	for i := first; i < min(first+rows, len(m.jobs)); i++ {
		j := m.jobs[i]
		state, until := "running", m.reading.At
		switch {
		case j.Exit != nil:
			state, until = fmt.Sprintf("exit %d", j.Exit.Code), j.Ended
		case !j.Ended.IsZero():
			state, until = "lost", j.Ended
		}
		command := strings.Join(j.Args, " ")
		if j.Label != "" {
			command = j.Label + ": " + command
		}
		line := fmt.Sprintf("  %s %s %6s %8s %s", fit(j.ID, 8), fit(state, 8), shortTime(until.Sub(j.Started)), shortBytes(float64(j.OutputBytes)), fit(command, max(10, m.width-38)))
		lines = append(lines, m.mark(line, i == m.job, true, ""))
	}
	if len(m.jobs) == 0 {
		lines = append(lines, "  none")
	}
	return lines
}
