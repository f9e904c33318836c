// Runs fast until slices are long, and then, for ever, what costs most for each instruction: WORK says what.
typedef unsigned long u64;
typedef unsigned u32;

enum { PAGE = 4096, PAGES = 6000, RET = 0x00008067, NOP = 0x00000013, NEXT_PAGE = 0x0000106f };
static char *const memory = (char *)0x81000000; // behind the program

static void call(char *code) { ((void (*)(void))code)(); }

#define MANY(operation) __asm__ volatile(".rept 64\n" operation "\n.endr" : : "r"(memory), "r"(8ul << 60) : "memory", "t0", "t1")

// Behind an exception the next instruction is executed.
__attribute__((naked, aligned(4))) static void skip(void) {
    __asm__ volatile("csrrw t0, mepc, t0\n addi t0, t0, 4\n csrrw t0, mepc, t0\n mret");
}

static void work(void) {
#if WORK == 0 // pages of code that are not decoded
    call(memory);
#elif WORK == 1 // a page of code that changes each time
    for (;;) {
        *(volatile u32 *)memory = RET;
        call(memory);
    }
#elif WORK == 2 // pages that the TLB does not have
    for (char *page = memory; page < memory + (u64)PAGES * PAGE; page += PAGE) *(volatile u32 *)page;
#elif WORK == 3
    MANY("sfence.vma");
#elif WORK == 4 // the TLB is filled again
    MANY("sfence.vma\n lw t0, 0(%0)");
#elif WORK == 5
    MANY(".word 0");
#elif WORK == 6
    MANY("csrr t0, time");
#elif WORK == 7 // an instruction in two pages
    for (;;) call(memory + PAGE - 2);
#elif WORK == 8 // a device's register
    __asm__ volatile("li t1, 0x10001000\n .rept 64\n lw t0, 0(t1)\n .endr" ::: "t0", "t1");
#elif WORK == 9
    MANY(".option arch, +zicboz\n cbo.zero (%0)");
#elif WORK == 10 // superpages are flushed from all of the TLB
    MANY("sfence.vma %0");
#elif WORK == 11
    MANY("csrw satp, %1\n csrw satp, zero");
#elif WORK == 12 // stimecmp
    MANY("csrw 0x14d, %0");
#endif
}

void main(void) {
    __asm__ volatile("csrw mtvec, %0" : : "r"(skip));
    __asm__ volatile("csrw menvcfg, %0" : : "r"(1ul << 63));
    for (u64 i = 0; i < PAGES; i++) *(volatile u32 *)(memory + i * PAGE) = WORK == 0 && i < PAGES - 1 ? NEXT_PAGE : RET;
#if WORK == 7
    *(volatile unsigned short *)(memory + PAGE - 2) = (unsigned short)NOP;
    *(volatile unsigned short *)(memory + PAGE) = NOP >> 16;
    *(volatile u32 *)(memory + PAGE + 2) = RET;
#endif
    for (volatile long i = 0; i < 10000000; i++) {}
    for (;;) work();
}
