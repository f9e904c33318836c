package mount

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		windows    bool
		want       Spec
	}{
		{"host only", "/src", false, Spec{HostPath: "/src", GuestPath: "/mnt/host"}},
		{"host read-only", "/src:ro", false, Spec{HostPath: "/src", GuestPath: "/mnt/host", ReadOnly: true}},
		{"masks", "/src:/work:ro:mask=.env:mask=.git//hooks/", false,
			Spec{HostPath: "/src", GuestPath: "/work", ReadOnly: true, Masks: []string{".env", ".git/hooks"}}},
		{"mask alone", "/src:mask=a%3Ab%25", false, Spec{HostPath: "/src", GuestPath: "/mnt/host", Masks: []string{"a:b%"}}},
		{"relative host", ".", false, Spec{HostPath: ".", GuestPath: "/mnt/host"}},
		{"host cleaned", "./a//b/../c/", false, Spec{HostPath: "a/c", GuestPath: "/mnt/host"}},
		{"host and guest", "/src:/work", false, Spec{HostPath: "/src", GuestPath: "/work"}},
		{"all three", "/src:/work:ro", false, Spec{HostPath: "/src", GuestPath: "/work", ReadOnly: true}},
		{"copy-on-write", "/src:/work:cow:mask=.env", false, Spec{HostPath: "/src", GuestPath: "/work", CopyOnWrite: true, Masks: []string{".env"}}},
		{"guest cleaned", "/src://a/./b//", false, Spec{HostPath: "/src", GuestPath: "/a/b"}},
		{"guest starts like proc", "/src:/process", false, Spec{HostPath: "/src", GuestPath: "/process"}},
		{"host named ro", "ro", false, Spec{HostPath: "ro", GuestPath: "/mnt/host"}},
		{"host with spaces", "/my files:/w", false, Spec{HostPath: "/my files", GuestPath: "/w"}},
		{"one letter host", "c:/work", false, Spec{HostPath: "c", GuestPath: "/work"}},
		{"drive", `C:\x`, true, Spec{HostPath: `C:\x`, GuestPath: "/mnt/host"}},
		{"drive, guest, ro", `C:\x:/y:ro`, true, Spec{HostPath: `C:\x`, GuestPath: "/y", ReadOnly: true}},
		{"drive, ro", `C:\x:ro`, true, Spec{HostPath: `C:\x`, GuestPath: "/mnt/host", ReadOnly: true}},
		{"drive with slash", `d:/x/z:/y`, true, Spec{HostPath: `d:/x/z`, GuestPath: "/y"}},
		{"drive elsewhere", `C:\x:/y:ro`, false, Spec{HostPath: `C:\x`, GuestPath: "/y", ReadOnly: true}},
		{"UNC", `\\server\share:/y`, true, Spec{HostPath: `\\server\share`, GuestPath: "/y"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse(tc.spec, tc.windows)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct{ name, spec, want string }{
		{"empty", "", "host path is empty"},
		{"no host", ":/work", "host path is empty"},
		{"only ro", ":ro", "host path is empty"},
		{"relative guest", "/src:work", "not absolute"},
		{"empty guest", "/src:", "not absolute"},
		{"empty guest, ro", "/src::ro", "not absolute"},
		{"root guest", "/src:/", "guest's root"},
		{"root guest in disguise", "/src://.//", "guest's root"},
		{"guest climbs", "/src:/mnt/../../etc", "contains .."},
		{"guest ends in ..", "/src:/mnt/..", "contains .."},
		{"guest proc", "/src:/proc", "guest's /proc"},
		{"guest below sys", "/src:/sys//kernel", "guest's /sys"},
		{"guest dev", "/src:/dev/x:ro", "guest's /dev"},
		{"bad option", "/src:/work:rx", `unknown option "rx"`},
		{"both", "/src:/a:ro:cow", `unknown option "ro"`},
		{"too many parts", "/src:/a:/b:ro", `unknown option "/b"`},
		{"mask climbs", "/src:mask=a/../../b", "contains .."},
		{"mask of everything", "/src:mask=./", "whole mount"},
		{"absolute mask", "/src:mask=/etc", "absolute"},
		{"empty mask", "/src:/work:mask=", "mask is empty"},
		{"mask before option", "/src:/work:mask=a:ro", `unknown option "mask=a"`},
		{"NUL", "/src\x00:/a", "NUL"},
		{"long guest", "/src:/" + strings.Repeat("a", 5000), "longer than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.spec)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %+v, %v; want an error with %q", got, err, tc.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`C:\x:/y:ro`, true)
	f.Add("/src:/a/../b", false)
	f.Add("/src:/a:ro:mask=.env:mask=a%3A/b", false)
	f.Fuzz(func(t *testing.T, spec string, windows bool) {
		got, err := parse(spec, windows)
		if err != nil {
			return
		}
		if got.HostPath == "" || len(got.GuestPath) < 2 || got.GuestPath[0] != '/' {
			t.Errorf("parse(%q) = %+v", spec, got)
		}
		for _, mask := range got.Masks {
			if again, err := CleanMask(mask); err != nil || again != mask {
				t.Errorf("parse(%q) = %+v: %v", spec, got, err)
			}
		}
		for element := range strings.SplitSeq(got.GuestPath, "/") {
			if element == ".." || element == "." {
				t.Errorf("parse(%q) = %+v", spec, got)
			}
		}
	})
}
