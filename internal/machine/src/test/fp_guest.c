// The reference side on RISC-V: reads struct fp_vector records from standard input, executes each with a real
// instruction under dynamic rounding and writes struct fp_outcome records. Runs under qemu-riscv64 or on hardware.
#include <stdio.h>

#include "fp_vectors.h"

#define LOAD_S "fmv.w.x ft0, %[a]\nfmv.w.x ft1, %[b]\nfmv.w.x ft2, %[c]\n"
#define LOAD_D "fmv.d.x ft0, %[a]\nfmv.d.x ft1, %[b]\nfmv.d.x ft2, %[c]\n"
#define LOAD_R
#define STORE_S "fmv.x.w %[value], ft0\nslli %[value], %[value], 32\nsrli %[value], %[value], 32\n"
#define STORE_D "fmv.x.d %[value], ft0\n"
#define STORE_R

#define EXECUTE(function, signature, operand, instruction, result)                                            \
    case OP_##function:                                                                                       \
        __asm__ volatile("fsrm %[rm]\nfsflags zero\n" LOAD_##operand instruction "\nfrflags %[flags]\n"       \
                         STORE_##result                                                                       \
                         : [value] "=&r"(out.value), [flags] "=&r"(out.flags)                                 \
                         : [rm] "r"(v->rounding), [a] "r"(v->a), [b] "r"(v->b), [c] "r"(v->c)                 \
                         : "ft0", "ft1", "ft2");                                                              \
        break;

static struct fp_outcome execute(const struct fp_vector *v) {
    struct fp_outcome out = {0, 0};
    switch (v->operation) {
        FP_OPERATIONS(EXECUTE)
    }
    return out;
}

int main(void) {
    static struct fp_vector in[4096];
    static struct fp_outcome out[4096];
    size_t count;

    while ((count = fread(in, sizeof in[0], 4096, stdin)) > 0) {
        for (size_t i = 0; i < count; i++)
            out[i] = execute(&in[i]);
        if (fwrite(out, sizeof out[0], count, stdout) != count)
            return 1;
    }
    return fflush(stdout) != 0;
}
