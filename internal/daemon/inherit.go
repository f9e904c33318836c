package daemon

import (
	"os"
	"runtime"
	"slices"
	"strings"
)

// handedDown are the environment variables that a daemon inherits. A daemon runs for days and must not hold other variables of the
// process that starts it, such as credentials.
var handedDown = []string{
	"AGENTVM_ALPINE_MIRROR", "AGENTVM_DEBUG", "AGENTVM_IMAGE", "AGENTVM_INSECURE_REGISTRIES", "AGENTVM_REGISTRY_MIRRORS", "AGENTVM_STORE", "AGENTVM_VOLUME", // this program's
	"DOCKER_CONFIG", "HOME", "PATH", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", // where files are
	"ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE", // for downloads of images
	"GOCOVERDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", // of Go's runtime
}

// handedDownOnWindows are further variables that programs need there.
var handedDownOnWindows = []string{
	"APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERPROFILE", "WINDIR",
}

// environment returns the variables of all that a daemon inherits; more has further names.
func environment(all, more []string) (kept []string) {
	names := slices.Concat(handedDown, more)
	if runtime.GOOS == "windows" {
		names = append(names, handedDownOnWindows...)
	}
	for _, kv := range all {
		name, _, found := strings.Cut(kv, "=")
		if found && slices.ContainsFunc(names, func(n string) bool { return sameVariable(n, name) }) {
			kept = append(kept, kv)
		}
	}
	return kept
}

// sameVariable compares names: those of proxies, and all on Windows, without regard to case.
func sameVariable(name, given string) bool {
	if runtime.GOOS == "windows" || strings.HasSuffix(name, "_PROXY") {
		return strings.EqualFold(name, given)
	}
	return name == given
}

// environment returns the variables that the daemon of a VM of this store inherits from this process: also those of the VM's secrets.
func (s Store) environment(c Config) []string {
	more := slices.Clone(s.Environment)
	for _, secret := range c.Secrets {
		if name, found := strings.CutPrefix(secret.Source, "env:"); found {
			more = append(more, name)
		}
	}
	return environment(os.Environ(), more)
}
