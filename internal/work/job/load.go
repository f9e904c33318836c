package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
	"agentvm/internal/host/shortage"
	"agentvm/internal/storage/journal"
)

// ErrDamaged is the error of a job whose files are damaged. Its output is what precedes the damage.
var ErrDamaged = errors.New("its files are damaged")

// Load finds the jobs of earlier processes, each in a directory below dir that has its id as its name. Those whose end was not recorded
// have ended, too: their error is unseen, which is recorded now. Those with the ids of open are left open, for Continue or Job.Lose. The error
// of those whose files are damaged is ErrDamaged.
func (t *Table) Load(dir string, unseen error, open ...string) {
	for _, dir := range subdirectories(dir) {
		atomicfile.RemoveAllTemporary(dir)
		j, err := openNamed(dir, journal.Open)
		if err == nil {
			j.table = t
			if err = j.readEnd(); errors.Is(err, errNoEnd) && slices.Contains(open, j.record.ID) {
				err = nil
			} else if errors.Is(err, errNoEnd) {
				j.finish(End{Ended: j.lastWrite()}, unseen)
				err = nil
			} else if err != nil {
				err = errors.Join(err, j.log.Close())
			}
		}
		if shortage.Is(err) || errors.Is(err, private.ErrNotPrivate) {
			t.config.Logger.Warn("the output of an earlier job cannot be read now; it is kept",
				"job", filepath.Base(dir), "error", err, "advice", shortage.Advice(err))
			continue
		}
		if err != nil && neverRan(dir) {
			_ = os.RemoveAll(dir)
			continue
		}
		if err != nil {
			t.config.Logger.Warn("the files of an earlier job are damaged; they are kept", "job", filepath.Base(dir), "error", err)
			j = openDamaged(dir, err)
			j.table = t
		}
		t.add(j)
	}
	t.prune()
}

// Peek is Load for reading only: it changes and deletes nothing.
func (t *Table) Peek(dir string, unseen error) {
	for _, dir := range subdirectories(dir) {
		j, err := openNamed(dir, journal.OpenReadOnly)
		switch {
		case err == nil:
			if err := j.readEnd(); err != nil {
				j.interrupted(unseen)
			}
		case neverRan(dir), shortage.Is(err), errors.Is(err, private.ErrNotPrivate):
			continue // Load logs it
		default:
			j = openDamaged(dir, err)
		}
		j.table = t
		t.add(j)
	}
}

// openNamed opens a job whose id is its directory's name.
func openNamed(dir string, openJournal func(string) (*journal.Log, error)) (*Job, error) {
	if _, err := os.Lstat(RecordPath(dir)); err != nil {
		return nil, err
	}
	j, err := open(dir, openJournal)
	if err == nil && j.record.ID != filepath.Base(dir) {
		return nil, errors.Join(fmt.Errorf("it is of job %.40q", j.record.ID), j.log.Close())
	}
	return j, err
}

// neverRan reports whether a directory is of a job whose start was interrupted: it has no record, and no output.
func neverRan(dir string) bool {
	if _, err := os.Lstat(RecordPath(dir)); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	log, err := journal.OpenDamaged(JournalPath(dir))
	if err != nil {
		info, err := os.Lstat(JournalPath(dir))
		return errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
	}
	total, _ := log.Size()
	return log.Close() == nil && total == 0
}

// openDamaged returns what can be read of a job whose files are damaged, as why says.
func openDamaged(dir string, why error) *Job {
	j := newJob(dir)
	var r record
	if b, err := private.ReadFile(RecordPath(dir), maxRecord); err == nil && json.Unmarshal(b, &r) == nil && r.ID == filepath.Base(dir) {
		j.record = r
	}
	j.record.ID, j.record.Durable = filepath.Base(dir), true
	var err error
	if j.log, err = journal.OpenDamaged(JournalPath(dir)); err != nil {
		j.log, _ = journal.Create("", journal.Config{}) // empty, in memory: never fails
	}
	if j.record.Started.IsZero() {
		j.record.Started = j.lastWrite()
	}
	j.interrupted(fmt.Errorf("%w: %w; agentvm job rm removes them", ErrDamaged, why))
	return j
}

// lastWrite returns when a job wrote its last output, or now when that is not known.
func (j *Job) lastWrite() time.Time {
	info, err := os.Stat(JournalPath(j.dir))
	if err != nil {
		return time.Now()
	}
	return info.ModTime()
}

// subdirectories returns the directories in dir. There are none when it cannot be read.
func subdirectories(dir string) (list []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	return list
}
