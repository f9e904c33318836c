// Small loops, each about one thing that a processor or kernel does. Prints for each its name and the nanoseconds of one step: the best of
// twenty short runs, of which some have the processor to themselves. An empty asm keeps the compiler from seeing through values.
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, MANY_PAGES = 8192, RUNS = 20 };
#define HIDE(x) __asm__ volatile("" : "+r"(x))
#define HIDE_FLOAT(x) __asm__ volatile("" : "+" FLOAT_REGISTER(x))
#ifdef __riscv
#define FLOAT_REGISTER "f"
#else
#define FLOAT_REGISTER "x"
#endif
#define OWN_PAGE __attribute__((noinline, aligned(PAGE)))

static volatile uint64_t page[WORDS] __attribute__((aligned(PAGE)));
static volatile char *many; // MANY_PAGES, each with a word in another cache line
static volatile uint64_t sink;

static void alu(long n) {
    uint64_t a = 1, b = 2;
    for (long i = 0; i < n; i++) {
        a += b;
        HIDE(a);
        b ^= a;
        HIDE(b);
        a = (a << 1) - b;
        HIDE(a);
        b += a;
        HIDE(b);
    }
    sink = a + b;
}

static void load(long n) {
    uint64_t a = 0;
    for (long i = 0; i < n; i++)
        a += page[0] + page[9] + page[18] + page[27] + page[36] + page[45] + page[54] + page[63];
    sink = a;
}

static void store(long n) {
    for (long i = 0; i < n; i++) {
        page[0] = page[9] = page[18] = page[27] = (uint64_t)i;
        page[36] = page[45] = page[54] = page[63] = (uint64_t)i;
    }
}

static void chase(long n) {
    static uint64_t *volatile next[WORDS];
    for (int i = 0; i < WORDS; i++)
        next[i] = (uint64_t *)&next[(i + 73) % WORDS];
    uint64_t *at = (uint64_t *)&next[0];
    for (long i = 0; i < n; i++)
        at = *(uint64_t *volatile *)at;
    sink = (uintptr_t)at;
}

static void pages(long n, int count) {
    uint64_t a = 0;
    for (long i = 0, at = 0; i < n; i++, at = at + 1 < count ? at + 1 : 0)
        a += *(volatile uint64_t *)(many + at * PAGE + at % 64 * 64);
    sink = a;
}
static void pages_64(long n) { pages(n, 64); }
static void pages_many(long n) { pages(n, MANY_PAGES); }

static void copy(long n) {
    for (long i = 0; i < n; i++)
        page[i % WORDS] = page[(i + 8) % WORDS];
}

static __attribute__((noinline)) uint64_t here(uint64_t x) { HIDE(x); return x + 1; }
static OWN_PAGE uint64_t there(uint64_t x) { HIDE(x); return x + 1; }
static __attribute__((noinline)) void call_here(long n) {
    uint64_t x = 0;
    for (long i = 0; i < n; i++)
        x = here(x);
    sink = x;
}
static OWN_PAGE void call_there(long n) {
    uint64_t x = 0;
    for (long i = 0; i < n; i++)
        x = there(x);
    sink = x;
}

#define TARGET(name, how) static __attribute__((noinline)) uint64_t name(uint64_t x) { HIDE(x); return x how; }
TARGET(t0, +1) TARGET(t1, ^2) TARGET(t2, -3) TARGET(t3, +4) TARGET(t4, ^5) TARGET(t5, -6) TARGET(t6, +7) TARGET(t7, ^8)
static uint64_t (*volatile targets[8])(uint64_t) = {t0, t1, t2, t3, t4, t5, t6, t7};
static void indirect(long n) {
    uint64_t x = 0;
    for (long i = 0; i < n; i++)
        x = targets[i & 7](x);
    sink = x;
}

static void branches(long n) {
    uint64_t x = 88172645463325252, a = 0;
    for (long i = 0; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (x & 1) {
            a += 3;
            HIDE(a);
        }
    }
    sink = a;
}

static void add_float(long n) {
    double a = 1, b = 1e-9, c = 1;
    HIDE_FLOAT(b);
    for (long i = 0; i < n; i++) {
        a = a * b;
        HIDE_FLOAT(a);
        a = a + c;
        HIDE_FLOAT(a);
    }
    sink = (uint64_t)a;
}
static void fused(long n) {
    double a = 1, b = 1e-9, c = 1;
    HIDE_FLOAT(b);
    for (long i = 0; i < n; i++) {
        a = fma(a, b, c);
        HIDE_FLOAT(a);
    }
    sink = (uint64_t)a;
}

static void atomic(long n) {
    static uint64_t counter;
    for (long i = 0; i < n; i++)
        __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
}

static void clock_read(long n) {
    struct timespec t;
    for (long i = 0; i < n; i++)
        clock_gettime(CLOCK_MONOTONIC, &t);
}

static void system_call(long n) {
    for (long i = 0; i < n; i++)
        syscall(SYS_getppid);
}

static void fault(long n) {
    while (n > 0) {
        long count = n < MANY_PAGES ? n : MANY_PAGES;
        volatile char *fresh = mmap(NULL, (size_t)count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED)
            abort();
        madvise((void *)fresh, (size_t)count * PAGE, MADV_NOHUGEPAGE);
        for (long i = 0; i < count; i++)
            fresh[i * PAGE] = 1;
        munmap((void *)fresh, (size_t)count * PAGE);
        n -= count;
    }
}

// Two processes on one processor give each other a byte.
static void context_switch(long n) {
    int there_end[2], back[2];
    char byte = 0;
    if (pipe(there_end) || pipe(back))
        abort();
    pid_t child = fork();
    if (child == 0) {
        for (long i = 0; i < n; i += 2)
            if (read(there_end[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
                _exit(1);
        _exit(0);
    }
    for (long i = 0; i < n; i += 2)
        if (write(there_end[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            abort();
    waitpid(child, NULL, 0);
    for (int i = 0; i < 2; i++)
        close(there_end[i]), close(back[i]);
}

static void process(long n) {
    for (long i = 0; i < n; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
}

static const struct {
    const char *name;
    void (*run)(long);
    int steps; // of one turn of the loop
} loops[] = {
    {"alu", alu, 5}, {"load", load, 8}, {"store", store, 8}, {"chase", chase, 1}, {"load-64-pages", pages_64, 1}, {"tlb-miss", pages_many, 1},
    {"copy", copy, 1}, {"call", call_here, 1}, {"call-across-pages", call_there, 1}, {"indirect", indirect, 1}, {"branches", branches, 1},
    {"fmul-fadd", add_float, 2}, {"fmadd", fused, 1}, {"atomic", atomic, 1}, {"clock", clock_read, 1}, {"system-call", system_call, 1},
    {"page-fault", fault, 1}, {"context-switch", context_switch, 1}, {"fork", process, 1},
};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    many = mmap(NULL, (size_t)MANY_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (many == MAP_FAILED)
        return 1;
    madvise((void *)many, (size_t)MANY_PAGES * PAGE, MADV_NOHUGEPAGE);
    for (int i = 0; i < MANY_PAGES; i++)
        many[i * PAGE] = 1;
    for (unsigned i = 0; i < sizeof loops / sizeof *loops; i++) {
        long n = 2;
        double took = 0, best = 1e9;
        for (; took < 0.002; n *= 2) {
            double start = seconds();
            loops[i].run(2 * n);
            took = seconds() - start;
        }
        for (int run = 0; run < RUNS; run++) {
            double start = seconds();
            loops[i].run(n);
            took = seconds() - start;
            best = took < best ? took : best;
        }
        printf("%s %.4f\n", loops[i].name, best / (double)n / loops[i].steps * 1e9);
    }
    return 0;
}
