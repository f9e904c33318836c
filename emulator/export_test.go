package emulator

// CopyImages makes the program's machines copy images instead of mapping them, as some systems have to.
func (p *Program) CopyImages() *Program {
	c := *p
	c.copyImages = true
	return &c
}
