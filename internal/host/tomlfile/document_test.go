package tomlfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestEntries compares what the entries say with what stands at their places.
func TestEntries(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // NAME: KEY | VALUE | ITEMS
	}{
		{"nothing", "# only\n", nil},
		{"scalars", "a = 1 # one\n\"b c\"='x' \n", []string{`a: a | 1`, `"b c": "b c" | 'x'`}},
		{"dotted", "a . \"b\" = true", []string{`a.b: a . "b" | true`}},
		{"array", "a = [ # [\n 'x', # ,\n [1,[ ],],\n  \"\"\"y\n\"\"\" ,\n]\n", []string{"a: a | [ # [\n 'x', # ,\n [1,[ ],],\n  \"\"\"y\n\"\"\" ,\n] | 'x' | [1,[ ],] | \"\"\"y\n\"\"\""}},
		{"inline", "a = {b = [], c = {d = 2}}", []string{`a: a | {b = [], c = {d = 2}} | b = [] | c = {d = 2}`, `a.b: b | []`, `a.c: c | {d = 2} | d = 2`, `a.c.d: d | 2`}},
		{"inline tables", "a=[{b=1},\n{}, {b=2}]", []string{"a: a | [{b=1},\n{}, {b=2}] | {b=1} | {} | {b=2}", `a[0].b: b | 1`, `a[2].b: b | 2`}},
		{"headers", "[ x . y ]\nz=1\n[[s]]\nk=1\n[[s]]\n[s.t]\nk=2\n[[s.u]]\n[[s.u]]\nk=3", []string{
			`x.y: x . y`, `x.y.z: z | 1`, `s[0]: s`, `s[0].k: k | 1`, `s[1]: s`, `s[1].t: s.t`, `s[1].t.k: k | 2`, `s[1].u[0]: s.u`, `s[1].u[1]: s.u`, `s[1].u[1].k: k | 3`,
		}},
		{"a mark", "\ufeffa = 1", []string{`a: a | 1`}},
	} {
		d, err := Parse("f", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, e := range d.Entries {
			line := e.Name() + ": " + keyText(c.text, e)
			if e.Header {
				line = e.Name() + ": " + c.text[e.Value.At:e.Value.End]
			} else {
				line += " | " + c.text[e.Value.At:e.Value.End]
			}
			for _, item := range e.Items {
				line += " | " + c.text[item.At:item.End]
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// keyText is what stands before an entry's sign of equality.
func keyText(text string, e Entry) string {
	return strings.TrimRight(text[e.At:e.Value.At], " =")
}

func TestSyntaxErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a = \"b\"\nc = = 1", "f:2:5: unexpected character"},
		{"a = alpine", "f:1:5: unexpected character U+0061 'a' at start of value: a text is in quotes"},
		{"a.b = 1\na = 2", "f:2:1: key a is already defined"},
		{"ü = 1", "f:1:1: invalid character"},
		{"a = 'ü' 'b'", "f:1:9: expected newline"},
		{"a = 1\na = 2", "f:2:1: "},
		{"a = {b = 1}\n[a]\n", "f:2:2: "},
		{"a = \"\xff\"", "f:1:6: "},
		{"\ufeffa = ", "f:1:"},
		{"a = 99999999999999999999", "f:1:5: "},
		{"a = [1", "f:1:"},
		{"a = " + strings.Repeat("[", 1<<16), "f:1:"},
	} {
		if _, err := Parse("f", []byte(c.text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %s", c.text, err, c.want)
		}
	}
}

func TestWrite(t *testing.T) {
	for _, v := range []any{"plain", "\x00\x01\t\n\r\x7f\"\\<&>ü\u2028𝄞", true, 7, []string{"a", "\x1f"}, []string{}, []int{1, 2}} {
		d, err := Parse("f", []byte("a = "+Value(v)))
		if err != nil || fmt.Sprint(d.Tree["a"]) != fmt.Sprint(v) {
			t.Errorf("%q is written as %s: %v", v, Value(v), err)
		}
	}
	if got := Value([]string{"a", "b"}); got != `["a", "b"]` {
		t.Error(got)
	}
}

// TestHostileTexts takes texts of a megabyte, whose names would be far longer, in a time that a user does not notice.
func TestHostileTexts(t *testing.T) {
	const size = 1 << 20
	keys := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	long, deep := strings.Repeat("a", maxKey), strings.Repeat("a.", maxKey/2-1)+"a"
	for name, c := range map[string]struct{ text, problem string }{
		"a long header":            {"[" + strings.Repeat("a.", size/2) + "a]", "f:1:2: a key of 1048577 bytes: want at most 1024"},
		"a long key":               {"[x]\n" + long + "b=1", "f:2:1: a key of 1025 bytes"},
		"a long key inline":        {"a={b." + long + "=1}", "f:1:4: a key of 1026 bytes"},
		"many keys":                {keys("k%d=1\n", size/10), "f:10001:1: there are more than 10000 keys"},
		"arrays of tables":         {strings.Repeat("[[a]]\n", size/6), "f:10001:3: there are more"},
		"many inline tables":       {"a=[" + strings.Repeat("{a=1},", size/6) + "]", "f:1:"},
		"keys below a deep header": {"[" + deep + "]\n" + keys("k%d=1\n", maxEntries-1), ""},
		"keys below a long header": {"[" + long + "]\n" + keys("k%d=1\n", maxEntries-1), ""},
		"headers below deep ones":  {keys("["+deep[4:]+"k%d]\n", 1000), ""},
		"deep keys":                {keys(deep[10:]+".k%d=1\n", 1000), ""},
		"nested arrays of tables":  {strings.Repeat("[[a]]\n[[a.b]]\n", maxEntries/2), ""},
		"nested inline tables":     {strings.Repeat("a={", 9000) + strings.Repeat("}", 9000), ""},
		"nested arrays":            {"a=" + strings.Repeat("[", 9000) + strings.Repeat("]", 9000), ""},
		"a long array":             {"a=[" + strings.Repeat("1,", size/2) + "]", ""},
		"comments":                 {"a=[" + strings.Repeat("#\n", size/2) + "]", ""},
		"an array of empty tables": {"a=[" + strings.Repeat("{},", size/3) + "]", ""},
	} {
		began := time.Now()
		_, err := Parse("f", []byte(c.text))
		took := time.Since(began)
		if (err != nil) != (c.problem != "") || err != nil && !strings.HasPrefix(err.Error(), c.problem) || took > 20*time.Second {
			t.Errorf("%s: %.100v after %v, want %q", name, err, took, c.problem)
		}
		t.Logf("%s: %v", name, took)
	}
}

// FuzzParse: places are in the text, and parts of a value in it and in their order.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"a = [ # [\n 'x', [1,[ ],],\n  \"\"\"y\"\"\" ,\n]", "a={b=[],c={d=2}}", "[[s]]\nk=1\n[s.t]\n[[s.u]]", "\ufeffa.\"b c\" = 1979-05-27T07:32:00Z", "a = 0x1f\r\n#", "a=[{b=1},{}]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := slices.Clone(text)
		d, err := Parse("f", text)
		if !slices.Equal(text, before) {
			t.Fatal("the text was changed")
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Fatal(err)
			}
			return
		}
		for _, e := range d.Entries {
			if e.At < 0 || e.Value.At < e.At || e.Value.End <= e.Value.At || e.Value.End > len(text) {
				t.Fatalf("%+v in %q", e, text)
			}
			at := e.Value.At
			for _, item := range e.Items {
				if item.At <= at || item.End <= item.At || item.End >= e.Value.End {
					t.Fatalf("%+v in %q", e, text)
				}
				at = item.End - 1
			}
			if len(e.Items) > 0 && !strings.ContainsRune("[{", rune(text[e.Value.At])) || len(e.Items) > 0 && !strings.ContainsRune("]}", rune(text[e.Value.End-1])) {
				t.Fatalf("%+v in %q", e, text)
			}
		}
	})
}
