// What the programs about Sv39 share: bits of entries, a window that they map, and tables of a page each.
#define V 1
#define R 2
#define W 4
#define X 8
#define U 16
#define G 32
#define A 64
#define D 128
#define WINDOW 0x40000000

// entry LEAF, FRAME, FLAGS: what is at WINDOW, without a fence.
.macro entry leaf, frame, flags
    la t0, \frame
    srli t0, t0, 2
    li t1, \flags
    or t0, t0, t1
    la t1, \leaf
    sd t0, 0(t1)
.endm

// table ROOT, MIDDLE, LEAF, FRAME, FLAGS: RAM onto itself with one global superpage, and FRAME at WINDOW.
.macro table root, middle, leaf, frame, flags
    la t1, \root
    li t0, (0x80000000 >> 2) | V | R | W | X | A | D | G
    sd t0, 16(t1)
    la t0, \middle
    srli t0, t0, 2
    ori t0, t0, V
    sd t0, 8(t1)
    la t1, \middle
    la t0, \leaf
    srli t0, t0, 2
    ori t0, t0, V
    sd t0, 0(t1)
    entry \leaf, \frame, \flags
.endm

// space REGISTER, ROOT, ASID: the value for satp.
.macro space register, root, asid
    la \register, \root
    srli \register, \register, 12
    li t0, (8 << 16) | \asid
    slli t0, t0, 44
    or \register, \register, t0
.endm
