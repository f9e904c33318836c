package confine

import (
	"errors"
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Names of the layers.
const (
	nameDumps    = "no memory dumps"
	nameLimits   = "limits of the kernel's resources"
	nameLandlock = "Landlock"
	nameSeccomp  = Seccomp
)

// process applies the layers. Seccomp is last, because it forbids what the others need.
func process(r Rules) []Layer {
	layers := []Layer{noDumps(), limit(), restrictFiles(r)}
	return append(layers, filterSystemCalls(r))
}

func available() []Layer {
	layers := []Layer{{nameDumps, true, ""}, {nameLimits, true, ""}}
	version, err := landlockVersion()
	layers = append(layers, layer(nameLandlock, version, err))
	return append(layers, layer(nameSeccomp, "", seccompAvailable()))
}

func layer(name, version string, err error) Layer {
	if err != nil {
		return Layer{name, false, err.Error()}
	}
	return Layer{name, true, version}
}

// noDumps keeps the guest's memory out of core files. With a limit of 1, programs that receive dumps by a pipe get none either
// (core(5)).
func noDumps() Layer {
	return layer(nameDumps, "", unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}))
}

// maxDescriptors is more than a VM with all connections and open files at their limits needs, and too few to harm the host.
const maxDescriptors = 1 << 16

// maxLimits has the limits of what the kernel may hold for the process. There are none for sizes of files and for memory, which a VM's
// size decides, nor for threads, which the system counts for all processes of a user together.
var maxLimits = map[int]uint64{
	unix.RLIMIT_NOFILE:   maxDescriptors,
	unix.RLIMIT_MEMLOCK:  0,
	unix.RLIMIT_MSGQUEUE: 0,
	unix.RLIMIT_RTPRIO:   0, // no thread may preempt others in real time
	unix.RLIMIT_NICE:     0,
}

// limit lowers the limits of this process to maxLimits. A process of root can raise them again.
func limit() Layer {
	var failed error
	for resource, value := range maxLimits {
		var now unix.Rlimit
		err := unix.Getrlimit(resource, &now)
		if err == nil {
			err = unix.Setrlimit(resource, &unix.Rlimit{Cur: min(now.Cur, value), Max: min(now.Max, value)})
		}
		failed = errors.Join(failed, err)
	}
	return layer(nameLimits, "", failed)
}

// minLandlock is the first version that can allow moving files between directories, which mounts need.
const minLandlock = 2

func landlockVersion() (string, error) {
	version, err := ll.LandlockGetABIVersion()
	switch {
	case err != nil:
		return "", errors.New("this kernel has none, or it is switched off (Linux 5.19 and later can have it)")
	case version < minLandlock:
		return "", fmt.Errorf("this kernel has version %d: version %d is needed (Linux 5.19)", version, minLandlock)
	}
	return fmt.Sprintf("version %d", version), nil
}

const (
	readFile  = ll.AccessFSReadFile
	readDir   = readFile | ll.AccessFSReadDir
	writeFile = readFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
	// Devices are missing, because this program makes none.
	writeDir = readDir | writeFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeDir | ll.AccessFSMakeReg |
		ll.AccessFSMakeSym | ll.AccessFSRefer
	socketDir = writeDir | ll.AccessFSMakeSock
	mountDir  = socketDir | ll.AccessFSMakeFifo
)

// restrictFiles restricts signals and abstract sockets, too. It applies to all threads: before ABI 8 each thread needs a call of its own.
func restrictFiles(r Rules) Layer {
	version, err := landlockVersion()
	if err != nil {
		return layer(nameLandlock, "", err)
	}
	rules := append(pathRules(r.Read, readFile, readDir), pathRules(r.Write, writeFile, writeDir)...)
	rules = append(rules, pathRules(r.Sockets, writeFile, socketDir)...)
	rules = append(rules, pathRules(r.ReadMounts, readFile, readDir)...)
	rules = append(rules, pathRules(r.WriteMounts, writeFile, mountDir)...)
	// These are the rights of version 8, the scopes of signals and abstract sockets (version 6) among them. Newer versions are not tested yet.
	// A kernel whose scopes would keep a thread from signalling another of the same process, as Go's runtime does, counts as version 5.
	err = landlock.MustConfig(landlock.V8.HandledAccessFS, landlock.V8.Scoped).BestEffort().Restrict(rules...)
	return layer(nameLandlock, version, err)
}

func pathRules(paths []string, file, dir landlock.AccessFSSet) (rules []landlock.Rule) {
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil: // a path that is missing or cannot be reached needs no rule
		case info.IsDir():
			rules = append(rules, landlock.PathAccess(dir, path).IgnoreIfMissing())
		default:
			rules = append(rules, landlock.PathAccess(file, path).IgnoreIfMissing())
		}
	}
	return rules
}
