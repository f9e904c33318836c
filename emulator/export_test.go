package emulator

// CopyImages makes the program's machines copy images instead of mapping them, as some systems have to.
func (p *Program) CopyImages() *Program {
	return &Program{runtime: p.runtime, compiled: p.compiled, copyImages: true}
}
