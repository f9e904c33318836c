package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"agentvm/images"
	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
	"agentvm/internal/settings"
)

// projectMemory keeps what the project files of this user gave at their last use, so that no other, as a guest that has the project mounted,
// makes one give more without a word. It is a folder of the user's, not of one store, which no mount shows, with a file for each directory that
// has a project file.
type projectMemory struct {
	folder  string
	earlier string // a folder of the store, where earlier versions kept it
}

// projectUse is what is kept of one directory.
type projectUse struct {
	Directory string          `json:"directory"` // without links
	Grants    settings.Grants `json:"grants"`
}

// maxProjectUse bounds a file in bytes: paths in it are longer than those of the project file.
const maxProjectUse = 16 << 20

// projectFolder is its name.
const projectFolder = "projects"

func openProjectMemory() (projectMemory, error) {
	store, err := images.DefaultDir()
	if err != nil {
		return projectMemory{}, err
	}
	user, err := private.UserFolder()
	if err != nil { // an account without a home, which has a store nevertheless
		return projectMemory{folder: filepath.Join(store, projectFolder)}, nil
	}
	return projectMemory{filepath.Join(user, projectFolder), filepath.Join(store, projectFolder)}, nil
}

// projectUsePath is the file for a directory.
func projectUsePath(folder, dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(folder, hex.EncodeToString(sum[:16])+".json")
}

// load returns what a directory's file gave; the error is fs.ErrNotExist when it was not used.
func (m projectMemory) load(dir string) (settings.Grants, error) {
	grants, err := loadProjectUse(projectUsePath(m.folder, dir), dir)
	if errors.Is(err, fs.ErrNotExist) && m.earlier != "" {
		return loadProjectUse(projectUsePath(m.earlier, dir), dir)
	}
	return grants, err
}

func loadProjectUse(path, dir string) (settings.Grants, error) {
	text, err := private.ReadFile(path, maxProjectUse)
	if errors.Is(err, syscall.ENOTDIR) { // a file in the store's place: nothing was ever kept there
		return nil, fs.ErrNotExist
	} else if err != nil {
		return nil, err
	}
	var use projectUse
	if err := json.Unmarshal(text, &use); err != nil || use.Directory != dir {
		return nil, fmt.Errorf("what %s gave at its last use cannot be read: %s is damaged: look at the project file, and remove it", filepath.Join(dir, settings.Name), path)
	}
	return use.Grants, nil
}

func (m projectMemory) save(dir string, grants settings.Grants) error {
	text, err := json.Marshal(projectUse{dir, grants})
	if err != nil {
		return err
	}
	if err := private.MakeFolder(filepath.Dir(m.folder)); err != nil {
		return err
	}
	if err := private.MakeFolder(m.folder); err != nil {
		return err
	}
	return atomicfile.Write(projectUsePath(m.folder, dir), text)
}

// projectPast is what held so far in a directory.
type projectPast struct {
	memory projectMemory
	dir    string            // of the project file that holds now
	known  bool              // it has been used
	above  bool              // what held is that of a directory above dir
	gone   string            // what held is that of this directory below dir, in which there is no file now; "": not so
	uses   []settings.Grants // what held, and dir's last use
}

// past looks for what held at start, where now the file of dir holds: that of the nearest directory which has been used. It may be another than
// dir: its file has been removed, or dir's is new, or the .git in dir is, so that the search for a file ends there.
func (m projectMemory) past(start, dir string) (projectPast, error) {
	p := projectPast{memory: m, dir: realPath(dir)}
	above := false
	for at := start; ; at = filepath.Dir(at) {
		real := realPath(at)
		use, err := m.load(real)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return p, err
		case real == p.dir:
			p.uses, p.known = append(p.uses, use), true
		case len(p.uses) == 0:
			p.uses, p.above = append(p.uses, use), above
			if !above {
				p.gone = real
			}
		}
		above = above || real == p.dir
		if at == filepath.Dir(at) {
			return p, nil
		}
	}
}

// beyond lists what now gives that the past did not, apart from some settings.
func (p projectPast) beyond(now settings.Grants, apart ...string) (list []string) {
	now = maps.Clone(now)
	for _, use := range p.uses {
		for _, key := range apart {
			now[key] = use[key]
		}
		for _, what := range now.Beyond(use) {
			if !slices.Contains(list, what) {
				list = append(list, what)
			}
		}
	}
	return list
}

// end makes now what is compared with the next time; found is false where no file holds.
func (p projectPast) end(now settings.Grants, found bool) error {
	if p.gone != "" {
		if err := p.memory.save(p.gone, now); err != nil {
			return err
		}
	}
	if len(p.uses) == 1 && p.known && reflect.DeepEqual(p.uses[0], now) {
		return nil
	}
	if !found && !p.known && p.dir == filepath.Dir(p.dir) {
		return nil // the root, where the search for a file has ended: it is above all other projects, which would be compared with it
	}
	return p.memory.save(p.dir, now)
}

// compareProject lets a project file that has been used give no more than it did then, unless the user agrees. found is false when there is no
// file, and file is without settings.
func compareProject(command *cobra.Command, file *settings.File, found, trusted bool) error {
	start, err := filepath.Abs(".")
	if err != nil {
		return nil // there is no working directory, and no file
	}
	memory, err := openProjectMemory()
	if err != nil {
		return err
	}
	past, err := memory.past(start, filepath.Dir(file.Path))
	if err != nil {
		return err
	}
	now := file.Grants(realPath)
	var apart []string
	shows, learns := command.Name() == "config", command.Name() == "learn"
	if learns { // with a policy of its own
		apart = policySettings()
	}
	beyond := past.beyond(now, apart...)
	if len(beyond) > 0 && !trusted {
		what := file.Path + " gives more than at its last use"
		if !found {
			what = fmt.Sprintf("no %s holds in %s any more, and VMs get more without it", settings.Name, start)
		}
		if err := agreeToProject(command, what, !shows, beyond); err != nil {
			return err
		}
	}
	if shows || learns || !found && len(beyond) == 0 {
		return nil // config starts nothing, and what learn leaves out has not been agreed to
	}
	if err := past.end(now, found); err != nil {
		fmt.Fprintf(command.ErrOrStderr(), "agentvm: what %s gives is not noted for the next use: %v\n", file.Path, err)
	}
	return nil
}

// agreeToProject has the user agree to what a file gives beyond its last use, where there is one to be asked.
func agreeToProject(command *cobra.Command, what string, ask bool, beyond []string) error {
	for _, one := range beyond {
		what += "\n  " + printable(one)
	}
	in, isFile := command.InOrStdin().(*os.File)
	out, hasOut := command.ErrOrStderr().(*os.File)
	if !ask || !isFile || !hasOut || !isTerminal(in) || !isTerminal(out) {
		return fmt.Errorf("%s\n--trust-project agrees to it, --no-project uses no file", what)
	}
	fmt.Fprintf(out, "agentvm: %s\n", what)
	if !askYesNo(in, out, "Is that what you want?") {
		return errors.New("nothing was started")
	}
	return nil
}
