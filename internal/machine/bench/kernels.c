// Integer loops for measuring the interpreter, as a bare program that runs on agentvm and on QEMU's virt board
// (-bios none -kernel FILE): it computes for about the number of iterations that make was given, then powers off.
// Build: riscv64-linux-gnu-gcc -O2 -march=rv64gc -mabi=lp64d -mcmodel=medany -ffreestanding -nostdlib -static
//        -Wl,-Ttext=0x80000000 -DKERNEL=name -DROUNDS=n
#include <stdint.h>

static uint32_t words[4096];
static uint8_t flags[65536];

// primes marks composites; its inner loop is one store and one addition.
static uint64_t primes(void) {
    uint64_t count = 0;
    for (unsigned i = 0; i < sizeof flags; i++) flags[i] = 1;
    for (unsigned i = 2; i < sizeof flags; i++) {
        if (!flags[i]) continue;
        count++;
        for (unsigned j = i + i; j < sizeof flags; j += i) flags[j] = 0;
    }
    return count;
}

// checksum is bitwise CRC-32: shifts, exclusive ors and a data-dependent branch.
static uint64_t checksum(void) {
    uint32_t crc = ~0u;
    for (unsigned i = 0; i < 8192; i++) {
        crc ^= flags[i];
        for (int k = 0; k < 8; k++) crc = (crc & 1) ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    return crc;
}

// heapsort is loads, compares and unpredictable branches.
static void sift(uint32_t *a, unsigned root, unsigned count) {
    for (unsigned child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && a[child] < a[child + 1]) child++;
        if (a[root] >= a[child]) return;
        uint32_t t = a[root];
        a[root] = a[child];
        a[child] = t;
    }
}

static uint64_t heapsort(void) {
    enum { N = 4096 };
    uint32_t x = 2463534242u;
    for (int i = 0; i < N; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        words[i] = x;
    }
    for (int i = N / 2 - 1; i >= 0; i--) sift(words, (unsigned)i, N);
    for (unsigned end = N - 1; end > 0; end--) {
        uint32_t t = words[0];
        words[0] = words[end];
        words[end] = t;
        sift(words, 0, end);
    }
    return words[N / 2];
}

// calls is nothing but calls and returns.
static __attribute__((noinline)) uint64_t calls_of(uint64_t n) {
    return n < 2 ? n : calls_of(n - 1) + calls_of(n - 2);
}
static uint64_t calls(void) { return calls_of(20); }

// multiply is a 32 x 32 matrix product.
static uint64_t multiply(void) {
    enum { N = 32 };
    uint32_t *a = words, *b = words + N * N, *c = words + 2 * N * N;
    for (int i = 0; i < 2 * N * N; i++) words[i] = (uint32_t)i * 2654435761u;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            uint32_t sum = 0;
            for (int k = 0; k < N; k++) sum += a[i * N + k] * b[k * N + j];
            c[i * N + j] = sum;
        }
    return c[77];
}

volatile uint64_t sink;

__attribute__((used)) static void run(void) {
    for (int i = 0; i < ROUNDS; i++) sink += KERNEL();
    *(volatile uint32_t *)0x100000 = 0x5555;
    for (;;) {}
}

__asm__(".pushsection .text.start, \"ax\"\n.globl _start\n_start: la sp, stack_top\n call run\n.popsection\n"
        ".pushsection .bss\n.balign 16\n.space 16384\nstack_top:\n.popsection\n");
