# The base of an instance's hart, see hart.h.
	.globaltype hart_base, i32
	.globl hart_base
hart_base:
