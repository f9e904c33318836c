package images

import (
	"context"
	"testing"

	"agentvm/images/imagestest"
)

// openStore opens a store of the test's own whose Alpine mirror is at url.
func openStore(t testing.TB, url string) *Store {
	t.Helper()
	s, err := Config{Dir: t.TempDir(), AlpineMirror: url}.Open()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPullAlpine(t *testing.T) {
	url, ok := imagestest.Mirror(t)
	if !ok {
		t.Skip("no genuine Alpine release here")
	}
	s := openStore(t, url)
	var stages []Progress
	image, err := s.Pull(context.Background(), "alpine", func(p Progress) { stages = append(stages, p) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", image)
	if image.Name != "alpine:3.20.3" || image.Architecture != "riscv64" || !s.usable(image) {
		t.Errorf("pulled %+v", image)
	}
	again, err := s.Resolve(context.Background(), "alpine")
	if err != nil {
		t.Fatal(err)
	}
	if again.RootDiskDigest != image.RootDiskDigest {
		t.Errorf("resolved %+v", again)
	}
}
