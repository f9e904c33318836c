package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/daemon/confine"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/debugenv"
	"agentvm/internal/host/platform"
	"agentvm/internal/host/private"
	"agentvm/internal/machine"
	"agentvm/vm"
)

const doctorLong = `Looks at what a VM needs of this host, boots one, and says what works. Exits with 0 when VMs can run, with 1 when
something that they need is missing.`

// finding is the outcome of one check.
type finding struct {
	Check  string  `json:"check"`
	Status verdict `json:"status"`
	Detail string  `json:"detail"`
	Advice string  `json:"advice,omitempty"`
}

// verdict says how good a finding is.
type verdict string

const (
	good verdict = "ok"
	fair verdict = "warning" // works, but slower or with less
	bad  verdict = "failure" // VMs cannot run
)

func (c *cli) doctorCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use: "doctor", Short: "Check what works on this host", Long: doctorLong, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := c.examine(cmd.Context())
			show := printFindings
			if asJSON {
				show = func(w io.Writer, list []finding) error { return printJSON(w, list) }
			}
			if err := show(c.stdout, findings); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Status == bad {
					return exitStatus(exitFailure)
				}
			}
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON array")
	return command
}

func (c *cli) examine(ctx context.Context) []finding {
	findings := []finding{checkProcessor(), checkMemory()}
	findings = append(findings, checkLimits()...)
	findings = append(findings, c.checkStore()...)
	findings = append(findings, finding{Check: "privileges", Status: good, Detail: privileges() + "; neither KVM, root nor namespaces are needed"})
	findings = append(findings, checkConfinement())
	return append(findings, c.checkVM(ctx)...)
}

// checkConfinement says what confines the process of a VM that has a name.
func checkConfinement() finding {
	f := finding{Check: "confinement", Status: good}
	var force, missing []string
	for _, l := range confine.Available() {
		text := l.Name
		if l.Note != "" {
			text += " (" + l.Note + ")"
		}
		if l.InForce {
			force = append(force, text)
		} else {
			missing = append(missing, text)
		}
	}
	f.Detail = "the processes of VMs have: " + strings.Join(append(force, "a watchdog"), ", ")
	if len(missing) > 0 {
		f.Status, f.Detail = fair, f.Detail+"; they have not: "+strings.Join(missing, ", ")
		f.Advice = "VMs hold their guests without it; it is the second line of defence, see docs/security/hardening.md"
	}
	if debugenv.Has("noconfine") {
		f.Status, f.Detail = fair, f.Detail+"; but AGENTVM_DEBUG=noconfine switches it off"
	}
	return f
}

// compiledFor lists the processors that wazero translates WebAssembly for; elsewhere it interprets.
var compiledFor = map[string]bool{"amd64": true, "arm64": true}

// platformsHere says which machines translate their programs' hot code for this host, and which of them runs an image that is for all.
func platformsHere(translates func(platform.Architecture) bool) string {
	var native, interpreted []string
	for _, a := range platform.Supported() {
		if translates(a) {
			native = append(native, a.Platform())
		} else {
			interpreted = append(interpreted, a.Platform())
		}
	}
	text := ""
	if len(native) > 0 {
		text = "native code for VMs of " + strings.Join(native, " and ") + "; "
	}
	if len(interpreted) > 0 {
		text += "those of " + strings.Join(interpreted, " and ") + " are interpreted, some ten times slower; "
	}
	return text + "an image for both is run as " + platform.Default.Platform()
}

func checkProcessor() finding {
	f := finding{Check: "processor", Status: good, Detail: fmt.Sprintf("%s/%s, %d usable; %s", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), platformsHere(machine.TranslatesByDefault))}
	if !compiledFor[runtime.GOARCH] {
		f.Status, f.Detail = fair, runtime.GOARCH+": VMs are interpreted"
		f.Advice = "expect them to be some 50 times slower than on amd64 or arm64"
	}
	return f
}

func checkMemory() finding {
	f := finding{Check: "memory", Status: good}
	available, ok := availableMemory()
	if !ok {
		f.Detail = "how much is free is not known on this system"
		return f
	}
	f.Detail = fmt.Sprintf("%d MiB available, a VM has %d MiB and costs what it uses of them", available>>20, vm.DefaultMemory>>20)
	switch {
	case available < vm.MinMemory+64<<20:
		f.Status, f.Advice = bad, "free some memory"
	case available < vm.DefaultMemory:
		f.Status, f.Advice = fair, fmt.Sprintf("use --memory %dM or less", max(available>>20/2, vm.MinMemory>>20))
	}
	return f
}

func (c *cli) checkStore() []finding {
	f := finding{Check: "image store", Status: good}
	store, err := c.store(nil)
	if err != nil {
		f.Status, f.Detail, f.Advice = fair, err.Error(), "each start gets its image again; set AGENTVM_STORE to a directory that can be written"
		switch {
		case errors.Is(err, images.ErrMirror):
			f.Status, f.Advice = bad, "correct AGENTVM_ALPINE_MIRROR"
		case errors.Is(err, private.ErrNotPrivate):
			f.Status, f.Advice = bad, "who can change the store can change what VMs run: do what is said above, or set AGENTVM_STORE to another directory"
		case os.Getenv("AGENTVM_STORE") != "":
			f.Status, f.Advice = bad, "set it to a directory that can be written"
		}
		return []finding{f}
	}
	f.Detail = store.Dir()
	if err := tryWriting(store.Dir()); err != nil {
		f.Status, f.Detail, f.Advice = bad, err.Error(), "free some disk space or set AGENTVM_STORE to another directory"
	}
	return []finding{f, checkOwner(store.Dir()), checkCompiled(store.Dir()), checkImages(store)}
}

// checkOwner says whether the store, what leads to it, and what is in it can be changed by this user only.
func checkOwner(dir string) finding {
	f := finding{Check: "owner of the store", Status: good, Detail: "only you can change it, or put another one in its place"}
	if runtime.GOOS == "windows" {
		f.Detail = "not looked at on Windows, where the user's own folders are closed to other users"
		return f
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		problem := checkEntry(filepath.Join(dir, e.Name()), e.Type())
		if err == nil && !errors.Is(problem, os.ErrNotExist) { // which has been removed meanwhile
			err = problem
		}
	}
	if err != nil {
		f.Status, f.Detail, f.Advice = bad, err.Error(), "who can change the store can change what VMs run, and what they are given"
	}
	return f
}

// tryWriting writes a megabyte, which finds a full disk too.
func tryWriting(dir string) error {
	f, err := atomicfile.Create(filepath.Join(dir, "doctor"))
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 1<<20))
	return errors.Join(err, f.Discard())
}

func checkEntry(path string, kind os.FileMode) error {
	if !kind.IsRegular() {
		return private.CheckFolder(path)
	}
	file, _, err := private.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

// checkCompiled says whether compiled code can be kept: its folder and the key's, which lies elsewhere, must be the user's alone.
func checkCompiled(store string) finding {
	dir := filepath.Join(store, "compiled")
	f := finding{Check: "compiled code", Status: good, Detail: dir}
	err := private.MakeFolder(dir)
	if err == nil {
		_, err = private.CodeKey(store)
	}
	if keys, folderErr := private.UserFolder(); err == nil && folderErr == nil {
		f.Detail += ", with a key in " + keys
	}
	if err != nil {
		f.Status, f.Detail, f.Advice = fair, err.Error(), "nothing is kept, and each start takes about half a second longer"
	}
	return f
}

func checkImages(store *images.Store) finding {
	f := finding{Check: "images", Status: good}
	list, err := store.List()
	switch {
	case err != nil:
		f.Status, f.Detail = bad, err.Error()
	case len(list) == 0:
		f.Detail = "none yet; alpine is downloaded when it is first used"
	default:
		for i, image := range list {
			if i > 0 {
				f.Detail += ", "
			}
			f.Detail += image.Name
			if text := unsupported(image.Name, time.Now()); text != "" {
				f.Status, f.Advice = fair, text
			}
		}
	}
	return f
}

// checkVM boots a VM, which proves that VMs work. It uses the built-in image, so that it needs no download.
func (c *cli) checkVM(ctx context.Context) []finding {
	f := finding{Check: "VM", Status: good}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	v, err := vm.Start(ctx, vm.Config{Image: images.BuiltinName, Memory: 128 << 20, Logger: c.log})
	if err == nil {
		defer v.Close()
		var r *vm.Result
		r, err = v.Exec(ctx, "echo works")
		if err == nil && string(r.Stdout) != "works\n" {
			err = fmt.Errorf("a command answered %q", r.Stdout)
		}
	}
	if err != nil {
		f.Status, f.Detail = bad, err.Error()
		return []finding{f}
	}
	f.Detail = fmt.Sprintf("Linux %s ran a command after %.2f s", v.KernelRelease(), time.Since(began).Seconds())
	return []finding{f, checkNetwork(ctx, v)}
}

// checkNetwork looks at the network from inside of a VM. It sends nothing to other hosts.
func checkNetwork(ctx context.Context, v *vm.VM) finding {
	f := finding{Check: "network", Status: good, Detail: "the VM has an address and reaches its gateway"}
	r, err := v.Exec(ctx, "ip -4 addr show eth0 | grep inet && wget -qO- http://agentvm.internal/policy")
	switch {
	case err != nil:
		f.Status, f.Detail = fair, err.Error()
	case r.ExitCode != 0:
		f.Status, f.Detail = fair, strings.TrimSpace("the VM has no working network: "+printable(string(r.Stderr)))
	}
	if f.Status != good {
		f.Advice = "VMs run without it; agentvm --debug exec true says more"
	}
	return f
}

func printFindings(w io.Writer, list []finding) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Status, f.Check, f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(table, "\t\t-> %s\n", f.Advice)
		}
	}
	return table.Flush()
}
