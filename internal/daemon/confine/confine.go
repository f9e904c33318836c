// Package confine gives up the rights that this process no longer needs, so that an attacker who controls it can do little. It
// works on Linux, as far as the kernel's version allows. The rights cannot be regained.
package confine

// Rules are the files to which the process keeps access. Open files stay open. Paths that do not exist are left out; links in them are
// followed now.
type Rules struct {
	Read  []string // files, and directories with everything below
	Write []string // the same, to be read, changed, made and removed
	// Sockets are directories like those of Write, in which Unix sockets can be made, too.
	Sockets []string
	// ReadMounts and WriteMounts are directories like those of Read and Write which a guest uses. In the latter it can make FIFOs and sockets.
	// They need system calls that the kernel cannot limit to a directory and that are forbidden without such mounts: with either it is
	// watching directories for changes, with the latter giving modes (without set-user-ID bits) and times to the user's files by name.
	ReadMounts, WriteMounts []string
}

// Seccomp is the name of the layer that filters system calls.
const Seccomp = "seccomp"

// Layer is one that confines a process.
type Layer struct {
	Name    string `json:"name"`
	InForce bool   `json:"inForce"`
	Note    string `json:"note,omitempty"` // why it is not, or its version
}

// Process confines this process, with all of its threads, for the rest of its life: it can reach only the files of the rules,
// start, trace, signal and slow down no other process, reach no abstract socket of one, mount nothing, change no namespace, give no file another
// owner or a set-user-ID bit, and load nothing into the kernel. It returns which layers
// are in force. A layer that the system does not have is not an error.
func Process(r Rules) []Layer { return process(r) }

// Available returns which layers Process would bring into force here.
func Available() []Layer { return available() }
