// Runs fast until slices are long, and then, for ever, what costs most for each instruction: `number` says what. slow.c has the same for the other machine.
typedef unsigned long u64;
typedef unsigned u32;

enum { PAGE = 4096, PAGES = 6000, NEXT_PAGE = 0x14000400 };
#define RET 0xd65f03c0u
static char *const memory = (char *)0x81000000; // behind the program
#define DISTRIBUTOR 0x8000000ul
#define PRIVATE 0x80b0000ul // interrupts

static void call(char *code) { ((void (*)(void))code)(); }
static void put(u64 at, u32 value) { *(volatile u32 *)at = value; }

#define MANY(operation) __asm__ volatile(".arch armv8.2-a+crypto+fp16\n.rept 64\n" operation "\n.endr" : : "r"(memory), "r"(1ul << 60), "r"(memory + 4096 - 7) : "memory", "x9", "x10", "x11")

// Each entry of a table is the table itself, or its block or page; the program's own addresses are translated by TTBR1.
static __attribute__((aligned(4096))) u64 itself[512], identity[512];

static void translate(void) {
    for (int i = 0; i < 512; i++) {
        itself[i] = (u64)itself | 0x743;
        identity[i] = (u64)i << 30 | 0x701;
    }
    itself[511] = 0;
    u64 tcr = 16 | 25ul << 16 | 2ul << 30 | 2ul << 32 | 1ul << 36; // 48 bits by TTBR0, 39 bits by TTBR1
    __asm__ volatile("msr mair_el1, %0\n msr tcr_el1, %1\n msr ttbr0_el1, %2\n msr ttbr1_el1, %3\n isb" : : "r"(0xfful), "r"(tcr), "r"(itself), "r"(identity));
    // The next instruction is at another address.
    __asm__ volatile("adr x9, 1f\n orr x9, x9, %0\n mrs x10, sctlr_el1\n orr x10, x10, 1\n ldr x11, =vectors\n orr x11, x11, %0\n msr vbar_el1, x11\n isb\n"
                     "msr sctlr_el1, x10\n isb\n 1: nop" : : "r"(0xffffff8000000000ul) : "x9", "x10", "x11", "memory");
}

static void work(int number) {
    switch (number) {
    case 0: // pages of code that are not decoded
        call(memory);
        break;
    case 1: // a page of code that changes each time
        for (;;) {
            *(volatile u32 *)memory = RET;
            call(memory);
        }
        break;
    case 2: // pages that the TLB does not have
        for (char *page = memory; page < memory + (u64)PAGES * PAGE; page += PAGE) *(volatile u32 *)page;
        break;
    case 3:
        MANY("tlbi vmalle1");
        break;
    case 4: // the TLB is filled again
        MANY("tlbi vmalle1\n ldr w9, [%0]");
        break;
    case 5:
        MANY(".word 0");
        break;
    case 6:
        MANY("mrs x9, cntvct_el0");
        break;
    case 7: // data in two pages
        MANY("ldr x9, [%2]\n str x9, [%2]");
        break;
    case 8: // a device's register
        __asm__ volatile("ldr x10, =0x10001000\n .rept 64\n ldr w9, [x10]\n .endr" ::: "x9", "x10");
        break;
    case 9:
        MANY("dc zva, %0");
        break;
    case 10: // of an address and of an address space
        MANY("tlbi vae1, %0\n tlbi aside1, xzr");
        break;
    case 11:
        MANY("msr ttbr0_el1, %1\n msr ttbr0_el1, xzr");
        break;
    case 12:
        MANY("msr cntv_cval_el0, %0\n msr cntp_ctl_el0, xzr");
        break;
    case 13: // walks of tables that point to themselves
        for (u64 at = 0; at < 510ul << 39; at += 0x8040201000) __asm__ volatile("ldr x9, [%0]\n str x9, [%0]\n at s1e1w, %0" : : "r"(at) : "x9", "memory");
        break;
    case 14: // waits that a masked interrupt ends
        MANY("wfi");
        break;
    case 15:
        __asm__ volatile(".rept 64\n mov w0, 0x84000000\n hvc 0\n.endr" ::: "x0", "x1", "x2", "x3");
        break;
    case 16: // interrupts of the same priority, all pending
        MANY("msr icc_pmr_el1, %0\n mrs x9, icc_hppir1_el1");
        break;
    case 17: // an interrupt that stays
        MANY("msr daifclr, 2");
        break;
    case 18: // floating point that takes long
        MANY("fdiv v0.4s, v1.4s, v2.4s\n fsqrt v3.4s, v1.4s\n fmla v4.4s, v1.4s, v2.4s\n fsqrt v3.2d, v2.2d");
        break;
    case 19:
        MANY("ld4 {v0.16b, v1.16b, v2.16b, v3.16b}, [%2]\n st4 {v0.16b, v1.16b, v2.16b, v3.16b}, [%2]");
        break;
    case 20:
        MANY("msr cntv_cval_el0, xzr\n mov x9, 1\n msr cntv_ctl_el0, x9\n mrs x9, cntv_ctl_el0");
        break;
    case 21:
        MANY("msr spsel, 0\n msr spsel, 1\n msr pan, 1\n msr pan, 0");
        break;
    case 22:
        MANY("pmull v0.1q, v1.1d, v2.1d\n aese v0.16b, v1.16b\n aesd v0.16b, v1.16b\n aesimc v0.16b, v1.16b\n sha256h q0, q1, v2.4s\n sha1p q0, s1, v2.4s");
        break;
    case 23:
        MANY("ldxr x9, [%0]\n stxr w10, x11, [%0]\n casal x9, x10, [%0]\n clrex");
        break;
    case 24:
        MANY("tbl v0.16b, {v1.16b, v2.16b, v3.16b, v4.16b}, v5.16b\n sqrdmulh v6.8h, v1.8h, v2.8h\n pmul v7.16b, v1.16b, v2.16b\n sqrshrn v0.8b, v1.8h, 3\n cnt v3.16b, v1.16b\n mul v4.16b, v1.16b, v2.16b");
        break;
    case 25:
        MANY("fdiv d0, d1, d2\n fsqrt d3, d1\n fmadd d4, d1, d2, d3\n fcvtzs x9, d1\n frinta d5, d1\n fsqrt s3, s2\n fcvt h4, d1");
        break;
    case 26:
        MANY("crc32x w9, w10, %0\n udiv x10, %0, x9\n crc32cx w9, w9, x10");
        break;
    }
}

void main(int number) {
    for (u64 i = 0; i < PAGES; i++) *(volatile u32 *)(memory + i * PAGE) = number == 0 && i < PAGES - 1 ? NEXT_PAGE : RET;
    __asm__ volatile(".arch armv8.2-a\n ldr d1, =0x3ff123456789abcd\n dup v1.2d, v1.d[0]\n ldr d2, =0x400fedcba9876543\n dup v2.2d, v2.d[0]" ::: "v1", "v2");
    if (number == 14 || number == 16 || number == 17) {
        put(PRIVATE + 0x100, 0xffffffff);
        put(DISTRIBUTOR + 0x104, 0xffffffff);
        put(PRIVATE + 0x200, 0xffffffff);
        put(DISTRIBUTOR + 0x204, 0xffffffff);
        put(DISTRIBUTOR, 2);
        __asm__ volatile("msr icc_pmr_el1, %0\n msr icc_igrpen1_el1, %1" : : "r"(0xfful), "r"(1ul));
    }
    if (number == 13) translate();
    for (volatile long i = 0; i < 600000; i++) {}
    for (;;) work(number);
}
