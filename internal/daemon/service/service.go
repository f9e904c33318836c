// Package service writes the file that makes a system run a program whenever the user's session begins: a unit of systemd's user manager, an agent of
// launchd, a task of Windows' scheduler.
package service

import (
	"bytes"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Name is that of the unit and the task, Label that of the agent.
const (
	Name  = "agentvm"
	Label = "agentvm.start"
)

// Service is a program that a session begins with.
type Service struct {
	Program string // absolute path
	Args    []string
	Env     []string // NAME=VALUE
	User    string   // Windows alone: DOMAIN\name, whose session it is
	Log     string   // launchd alone, whose programs have no journal: the file that standard error goes to
}

// File is what a system reads.
type File struct {
	Path string
	Text []byte
	// Wanted is a link to the file that systemd looks for when a session begins, "" elsewhere.
	Wanted string
}

// For returns the file for a system (GOOS). config and home are the user's directories. A path of "" means that the file is given to schtasks /XML.
func For(system string, s Service, config, home string) (File, error) {
	if err := s.check(system); err != nil {
		return File{}, err
	}
	switch system {
	case "linux":
		dir := filepath.Join(config, "systemd", "user")
		return File{filepath.Join(dir, Name+".service"), s.unit(), filepath.Join(dir, "default.target.wants", Name+".service")}, nil
	case "darwin":
		return File{Path: filepath.Join(home, "Library", "LaunchAgents", Label+".plist"), Text: s.agent()}, nil
	case "windows":
		return File{Text: utf16Text(s.task())}, nil
	}
	return File{}, fmt.Errorf("no way is known to start programs with a session on %s: have it run %s %s", system, s.Program, strings.Join(s.Args, " "))
}

// check refuses what these files cannot say.
func (s Service) check(system string) error {
	if system != "windows" && !filepath.IsAbs(s.Program) {
		return fmt.Errorf("%q is no absolute path", s.Program)
	}
	for _, text := range append([]string{s.Program, s.User, s.Log}, append(s.Args, s.Env...)...) {
		if strings.ContainsFunc(text, unicode.IsControl) {
			return fmt.Errorf("%q has a control character", text)
		}
	}
	if system == "linux" && strings.ContainsAny(s.Program, `"'\`) {
		return fmt.Errorf("%s: systemd runs no program whose path has quotation marks or backslashes", s.Program)
	}
	if system == "windows" && len(s.Env) > 0 {
		return errors.New("a task of Windows has the variables of the user (setx) and no others")
	}
	return nil
}

// unit is for systemd.service(5). The VMs' processes are of the unit: when it stops, at the end of the session, they get SIGTERM and end in order.
func (s Service) unit() []byte {
	run := unitSetting(s.Program)
	for _, a := range s.Args {
		run += " " + unitWord(a)
	}
	var env strings.Builder
	for _, kv := range s.Env {
		env.WriteString("Environment=" + unitSetting(kv) + "\n")
	}
	return []byte(`[Unit]
Description=Start the VMs of agentvm that are always to run

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + run + `
` + env.String() + `TimeoutStartSec=10min
TimeoutStopSec=30s

[Install]
WantedBy=default.target
`)
}

// agent is for launchd.plist(5).
func (s Service) agent() []byte {
	var args, env strings.Builder
	for _, a := range append([]string{s.Program}, s.Args...) {
		args.WriteString("\t\t<string>" + xmlText(a) + "</string>\n")
	}
	for _, kv := range s.Env {
		name, value, _ := strings.Cut(kv, "=")
		env.WriteString("\t\t<key>" + xmlText(name) + "</key>\n\t\t<string>" + xmlText(value) + "</string>\n")
	}
	return []byte(`<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>` + Label + `</string>
	<key>ProgramArguments</key>
	<array>
` + args.String() + `	</array>
	<key>EnvironmentVariables</key>
	<dict>
` + env.String() + `	</dict>
	<key>RunAtLoad</key>
	<true/>
	<key>AbandonProcessGroup</key>
	<true/>
	<key>StandardErrorPath</key>
	<string>` + xmlText(s.Log) + `</string>
</dict>
</plist>
`)
}

// task is of the Task Scheduler Schema 1.2. ExecutionTimeLimit is none, because the VMs' processes come from it.
func (s Service) task() []byte {
	args := make([]string, len(s.Args))
	for i, a := range s.Args {
		args[i] = windowsArgument(a)
	}
	user := "<UserId>" + xmlText(s.User) + "</UserId>"
	return []byte(`<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo><Description>Start the VMs of agentvm that are always to run</Description></RegistrationInfo>
  <Triggers><LogonTrigger><Enabled>true</Enabled>` + user + `</LogonTrigger></Triggers>
  <Principals><Principal id="Author">` + user + `<LogonType>InteractiveToken</LogonType><RunLevel>LeastPrivilege</RunLevel></Principal></Principals>
  <Settings>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
  </Settings>
  <Actions Context="Author"><Exec><Command>` + xmlText(s.Program) + `</Command><Arguments>` + xmlText(strings.Join(args, " ")) + `</Arguments></Exec></Actions>
</Task>
`)
}

// unitSetting quotes a value for Environment= (systemd.exec(5)) or the program of ExecStart=, in which % begins a specifier; unitWord an argument of
// ExecStart=, in which $ begins a variable, too.
func unitSetting(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`).Replace(s) + `"`
}

func unitWord(s string) string { return strings.ReplaceAll(unitSetting(s), "$", "$$") }

// windowsArgument quotes an argument for CommandLineToArgvW, for which backslashes count before a quotation mark alone.
func windowsArgument(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\"") {
		return s
	}
	b := []byte{'"'}
	slashes := 0
	for _, c := range []byte(s) {
		if c == '"' {
			b = append(b, bytes.Repeat([]byte{'\\'}, slashes+1)...)
		}
		if slashes++; c != '\\' {
			slashes = 0
		}
		b = append(b, c)
	}
	return string(append(append(b, bytes.Repeat([]byte{'\\'}, slashes)...), '"'))
}

func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder never fails
	return b.String()
}

// utf16Text is what schtasks reads: little-endian, with a byte order mark.
func utf16Text(text []byte) []byte {
	b := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(string(text))) {
		b = binary.LittleEndian.AppendUint16(b, unit)
	}
	return b
}
