package machine

// SlicesOf is how many slices of a processor other than the first have begun and ended.
func (m *Machine) SlicesOf(number int) uint64 { return m.others[number-1].slices.Load() }
