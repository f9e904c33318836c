//go:build !linux

package hostpath

// Names returns nothing: there are no bind mounts here.
func (p *Place) Names() (names []string, below map[string][]string) { return nil, nil }
