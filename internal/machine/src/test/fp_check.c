// Checks fp.h against references. Usage:
//   fp_check generate SEED COUNT       writes COUNT random vectors for each operation and rounding mode
//   fp_check compare VECTORS OUTCOMES  compares with what the RISC-V program made of the vectors
//   fp_check hardware SEED COUNT       compares with this processor: every pair of edge values and COUNT random
//                                      vectors for each operation and rounding mode
//   fp_check bench                     nanoseconds of each operation, with the fast path and without
#define _POSIX_C_SOURCE 199309L // clock_gettime
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../common/fp.h"
#include "fp_apply.h"
#include "fp_hardware.h"
#include "fp_operands.h"

static bool differs(const struct fp_vector *v, struct fp_outcome want, uint32_t accrued, const char *reference) {
    struct fp_outcome got = fp_apply(v, accrued);
    want.flags |= accrued;
    if (got.value == want.value && got.flags == want.flags)
        return false;
    printf("%s rm=%" PRIu32 " a=%#" PRIx64 " b=%#" PRIx64 " c=%#" PRIx64 " fflags before=%#" PRIx32
           ": got %#" PRIx64 " fflags %#" PRIx64 ", %s says %#" PRIx64 " fflags %#" PRIx64 "\n",
           fp_operation_names[v->operation], v->rounding, v->a, v->b, v->c, accrued, got.value, got.flags, reference,
           want.value, want.flags);
    return true;
}

// Compares with a reference, with NX clear and with NX set before. Prints the first difference.
static bool matches(const struct fp_vector *v, struct fp_outcome want, const char *reference) {
    return !differs(v, want, 0, reference) && !differs(v, want, FP_NX, reference);
}

// Calls visit with `count` random vectors for each operation and rounding mode until it returns false.
static bool each_random_vector(uint64_t seed, unsigned long count, bool (*visit)(const struct fp_vector *)) {
    for (unsigned long i = 0; i < count; i++)
        for (uint32_t operation = 0; operation < FP_OPERATION_COUNT; operation++) {
            struct fp_vector v = {.operation = operation};
            fp_random_operands(&v, &seed);
            for (v.rounding = 0; v.rounding < FP_ROUNDING_COUNT; v.rounding++)
                if (!visit(&v))
                    return false;
        }
    return true;
}

static bool write_vector(const struct fp_vector *v) {
    return fwrite(v, sizeof *v, 1, stdout) == 1;
}

static int generate(uint64_t seed, unsigned long count) {
    return each_random_vector(seed, count, write_vector) && fflush(stdout) == 0 ? 0 : 1;
}

static int compare(const char *vectors_path, const char *outcomes_path) {
    FILE *vectors = fopen(vectors_path, "rb"), *outcomes = fopen(outcomes_path, "rb");
    struct fp_vector v;
    struct fp_outcome want;
    unsigned long count = 0;

    if (!vectors || !outcomes) {
        perror("fp_check");
        return 1;
    }
    for (; fread(&v, sizeof v, 1, vectors) == 1; count++) {
        if (fread(&want, sizeof want, 1, outcomes) != 1) {
            printf("%s ends after %lu outcomes\n", outcomes_path, count);
            return 1;
        }
        if (!matches(&v, want, "RISC-V"))
            return 1;
    }
    fclose(vectors);
    fclose(outcomes);
    printf("%lu vectors agree with RISC-V\n", count);
    return count > 0 ? 0 : 1;
}

static unsigned long hardware_vectors;

static bool agrees_with_hardware(const struct fp_vector *v) {
    struct fp_outcome want;
    if (!fp_execute_on_hardware(v, &want))
        return true;
    hardware_vectors++;
    return matches(v, want, "x86");
}

// Every pair of edge values of the operation's format; one of them again as the addend.
static bool edge_pairs_agree(uint32_t operation, struct fp_format f) {
    struct fp_vector v = {.operation = operation};
    unsigned count = fp_edge_count();
    for (unsigned i = 0; i < count * count; i++) {
        v.a = fp_edge(f, i / count);
        v.b = fp_edge(f, i % count);
        v.c = fp_edge(f, (i + i / count) % count);
        for (v.rounding = FP_RNE; v.rounding <= FP_RUP; v.rounding++)
            if (!agrees_with_hardware(&v))
                return false;
    }
    return true;
}

static bool all_edge_pairs_agree(void) {
    const uint32_t binary32[] = {OP_f32_add, OP_f32_mul, OP_f32_div, OP_f32_fma, OP_f32_lt};
    const uint32_t binary64[] = {OP_f64_add, OP_f64_mul, OP_f64_div, OP_f64_fma, OP_f64_lt};
    for (unsigned i = 0; i < 5; i++)
        if (!edge_pairs_agree(binary32[i], fp_binary32) || !edge_pairs_agree(binary64[i], fp_binary64))
            return false;
    return true;
}

static int check_hardware(uint64_t seed, unsigned long count) {
    if (!all_edge_pairs_agree() || !each_random_vector(seed, count, agrees_with_hardware))
        return 1;
    printf("%lu vectors agree with x86\n", hardware_vectors);
    return hardware_vectors > 0 ? 0 : 1;
}

enum { BENCH_VECTORS = 1024, BENCH_ROUNDS = 100 };

static double nanoseconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

// The best of several rounds: others use the processor too.
static double nanoseconds_each(const struct fp_vector *vectors, uint32_t accrued) {
    volatile uint64_t sink; // keeps the loop alive
    double best = 1e9;
    for (int round = 0; round < BENCH_ROUNDS; round++) {
        double start = nanoseconds_now();
        for (int i = 0; i < BENCH_VECTORS; i++)
            sink = fp_apply(&vectors[i], accrued).value;
        double each = (nanoseconds_now() - start) / BENCH_VECTORS;
        best = each < best ? each : best;
    }
    (void)sink;
    return best;
}

// Ordinary operands: numbers in [1, 2) with full fractions, so that results are inexact and no path is special.
static void bench_operation(uint32_t operation) {
    static struct fp_vector vectors[BENCH_VECTORS];
    bool narrow = fp_operation_names[operation][1] == '3';
    uint64_t state = 1;
    for (int i = 0; i < BENCH_VECTORS; i++) {
        uint64_t *operands[] = {&vectors[i].a, &vectors[i].b, &vectors[i].c};
        vectors[i].operation = operation;
        vectors[i].rounding = FP_RNE;
        for (int k = 0; k < 3; k++)
            *operands[k] = narrow ? 0x3f800000 | fp_random(&state) >> 41
                                  : 0x3ff0000000000000 | fp_random(&state) >> 12;
    }
    double software = nanoseconds_each(vectors, 0), fast = nanoseconds_each(vectors, FP_NX);
    printf("%-12s NX set %5.1f ns, NX clear %5.1f ns\n", fp_operation_names[operation], fast, software);
}

static int bench(void) {
    for (uint32_t operation = 0; operation < OP_f32_eq; operation++)
        bench_operation(operation);
    return 0;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    if (argc == 4 && strcmp(command, "generate") == 0)
        return generate(strtoull(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
    if (argc == 4 && strcmp(command, "compare") == 0)
        return compare(argv[2], argv[3]);
    if (argc == 4 && strcmp(command, "hardware") == 0)
        return check_hardware(strtoull(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
    if (argc == 2 && strcmp(command, "bench") == 0)
        return bench();
    fprintf(stderr, "usage: fp_check generate SEED COUNT | compare VECTORS OUTCOMES | hardware SEED COUNT | bench\n");
    return 2;
}
