package storetest

import (
	"os"
	"testing"

	"agentvm/images"
)

func TestStore(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks Alpine")
	}
	var s Store
	code := s.Main(func() int {
		name := s.Image(t)
		store, err := images.Config{Dir: s.Dir()}.Open()
		if err != nil {
			t.Fatal(err)
		}
		if image, err := store.Resolve(t.Context(), name); err != nil || image.Name != name {
			t.Errorf("%s is not in the store: %+v, %v", name, image, err)
		}
		if again := s.Image(t); again != name {
			t.Errorf("it is %s the second time", again)
		}
		return 7
	})
	if code != 7 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(s.Dir()); !os.IsNotExist(err) {
		t.Errorf("the store is left: %v", err)
	}
}
