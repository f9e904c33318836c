package reach

import (
	"io/fs"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseUnixSocket(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the paths are of Unix")
	}
	long := "/" + strings.Repeat("x", 107)
	for _, tt := range []struct {
		name, give string
		want       UnixSocket
		err        string
	}{
		{"same path", "/run/s", UnixSocket{Host: "/run/s", Guest: "/run/s", Mode: 0}, ""},
		{"both", "/run/s:/tmp/t", UnixSocket{Host: "/run/s", Guest: "/tmp/t", Mode: 0}, ""},
		{"all", "/run/s:/tmp/t:0600", UnixSocket{Host: "/run/s", Guest: "/tmp/t", Mode: 0o600}, ""},
		{"mode", "/run/s:660", UnixSocket{Host: "/run/s", Guest: "/run/s", Mode: 0o660}, ""},
		{"abstract names are paths", "/@s", UnixSocket{Host: "/@s", Guest: "/@s", Mode: 0}, ""},
		{"empty", "", UnixSocket{}, "the host path is empty"},
		{"relative in the guest", "/run/s:t", UnixSocket{}, "neither an absolute path"},
		{"set-user-ID", "/run/s:/t:4755", UnixSocket{}, "neither an absolute path"},
		{"three paths", "/a:/b:/c", UnixSocket{}, "too many colons"},
		{"not clean", "/a:/b/../c", UnixSocket{}, "shortest form"},
		{"root", "/a:/", UnixSocket{}, "shortest form"},
		{"too long", "/a:" + long, UnixSocket{}, "at most 107"},
		{"NUL", "/a\x00:/b", UnixSocket{}, "NUL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseUnixSocket(tt.give)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if again, err := ParseUnixSocket(got.String()); again != got || err != nil {
				t.Errorf("%s is read back as %v, %v", got, again, err)
			}
		})
	}
}

func TestUnixSocketOfADrive(t *testing.T) {
	for spec, want := range map[string]string{`C:\run\s:/t`: `C:\run\s`, `C:/run/s:/t:0600`: `C:/run/s`} {
		if got, err := parseUnixSocket(spec, true); !strings.HasSuffix(got.Host, want) || got.Guest != "/t" || err != nil {
			t.Errorf("%s: %+v, %v", spec, got, err)
		}
	}
	if _, err := parseUnixSocket(`C:\run\s`, true); err == nil {
		t.Error("a path of Windows is no path of the guest")
	}
}

func TestCheckUnixSockets(t *testing.T) {
	for _, tt := range []struct {
		name string
		give []UnixSocket
		want string
	}{
		{"two in one place", []UnixSocket{{Host: "/a", Guest: "/s"}, {Host: "/b", Guest: "/s"}}, "same place"},
		{"too many", make([]UnixSocket, maxUnixSockets+1), "at most 64"},
		{"mode", []UnixSocket{{Host: "/a", Guest: "/s", Mode: fs.ModeSetuid}}, "permissions only"},
	} {
		if _, err := CheckUnixSockets(tt.give); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
