// AES, carry-less products of 64 bits, SHA-1 and SHA-256 (DDI 0487, C7.2; FIPS 197 and FIPS 180-4 have the functions).
#include "hart.h"
#include "simd.h"

// AES ---------------------------------------------------------------------------------------------------------------

static uint8_t doubled(uint8_t a) { return (uint8_t)(a << 1 ^ (a >> 7) * 0x1b); }

static uint8_t product(uint8_t a, uint8_t b) {
    uint8_t sum = 0;
    for (; b != 0; b >>= 1, a = doubled(a))
        if (b & 1) sum ^= a;
    return sum;
}

static struct {
    bool made;
    uint8_t forward[256], inverse[256];
} boxes;

// make_boxes follows FIPS 197, 5.1.1: the inverse in the field, then an affine map. 3 generates the field, 0xf6 is its inverse.
static void make_boxes(void) {
    uint8_t p = 1, q = 1;
    do {
        p ^= doubled(p);
        q = product(q, 0xf6);
        uint8_t s = (uint8_t)(q ^ (q << 1 | q >> 7) ^ (q << 2 | q >> 6) ^ (q << 3 | q >> 5) ^ (q << 4 | q >> 4) ^ 0x63);
        boxes.forward[p] = s;
        boxes.inverse[s] = p;
    } while (p != 1);
    boxes.forward[0] = 0x63;
    boxes.inverse[0x63] = 0;
    __atomic_store_n(&boxes.made, true, __ATOMIC_RELEASE);
}

// aes_round is AESE and AESD: the key, the rows shifted, the box.
static void aes_round(uint32_t w, bool inverse) {
    if (!__atomic_load_n(&boxes.made, __ATOMIC_ACQUIRE)) make_boxes(); // by several harts at once: the same
    uint64_t *d = hart.v[rd_of(w)], *key = hart.v[rn_of(w)], state[2] = {d[0] ^ key[0], d[1] ^ key[1]};
    for (unsigned i = 0; i < 16; i++) {
        uint8_t v = (uint8_t)lane(state, 0, (i + (inverse ? 12 : 4) * (i & 3)) & 15);
        set_lane(d, 0, i, inverse ? boxes.inverse[v] : boxes.forward[v]);
    }
}

static void aes_mix(uint32_t w, bool inverse) {
    static const uint8_t factors[2][4] = {{2, 3, 1, 1}, {14, 11, 13, 9}};
    uint64_t result[2] = {0, 0};
    for (unsigned i = 0; i < 16; i++) {
        uint8_t sum = 0;
        for (unsigned k = 0; k < 4; k++) sum ^= product((uint8_t)lane(hart.v[rn_of(w)], 0, (i & ~3u) + ((i + k) & 3)), factors[inverse][k]);
        set_lane(result, 0, i, sum);
    }
    __builtin_memcpy(hart.v[rd_of(w)], result, sizeof result);
}

static void carryless(uint32_t w) {
    unsigned half = w >> 30 & 1;
    uint64_t a = hart.v[rn_of(w)][half], b = hart.v[rm_of(w)][half], low = 0, high = 0;
    for (unsigned i = 0; i < 64; i++)
        if (b >> i & 1) {
            low ^= a << i;
            if (i > 0) high ^= a >> (64 - i);
        }
    hart.v[rd_of(w)][0] = low;
    hart.v[rd_of(w)][1] = high;
}

// SHA -----------------------------------------------------------------------------------------------------------------

static uint32_t left(uint32_t v, unsigned by) { return v << by | v >> (32 - by); }
static uint32_t right(uint32_t v, unsigned by) { return v >> by | v << (32 - by); }

static uint32_t choose(uint32_t x, uint32_t y, uint32_t z) { return ((y ^ z) & x) ^ z; }
static uint32_t parity(uint32_t x, uint32_t y, uint32_t z) { return x ^ y ^ z; }
static uint32_t majority(uint32_t x, uint32_t y, uint32_t z) { return (x & y) | ((x | y) & z); }

static uint32_t word(const uint64_t *v, unsigned i) { return (uint32_t)lane(v, 2, i); }

static void sha1_rounds(uint32_t w, uint32_t (*f)(uint32_t, uint32_t, uint32_t)) {
    uint64_t *d = hart.v[rd_of(w)], wk[2] = {hart.v[rm_of(w)][0], hart.v[rm_of(w)][1]};
    uint32_t a = word(d, 0), b = word(d, 1), c = word(d, 2), e = word(d, 3), last = (uint32_t)hart.v[rn_of(w)][0];
    for (unsigned i = 0; i < 4; i++) {
        uint32_t sum = last + left(a, 5) + f(b, c, e) + word(wk, i);
        last = e, e = c, c = left(b, 30), b = a, a = sum;
    }
    d[0] = (uint64_t)b << 32 | a;
    d[1] = (uint64_t)e << 32 | c;
}

static void sha1_schedule0(uint32_t w) {
    uint64_t *d = hart.v[rd_of(w)], *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)];
    uint64_t low = d[1] ^ d[0] ^ m[0], high = n[0] ^ d[1] ^ m[1];
    d[0] = low;
    d[1] = high;
}

static void sha1_schedule1(uint32_t w) {
    uint64_t *d = hart.v[rd_of(w)], *n = hart.v[rn_of(w)];
    uint32_t t[4] = {word(d, 0) ^ word(n, 1), word(d, 1) ^ word(n, 2), word(d, 2) ^ word(n, 3), word(d, 3)};
    uint32_t first = left(t[0], 1);
    d[0] = (uint64_t)left(t[1], 1) << 32 | first;
    d[1] = (uint64_t)(left(t[3], 1) ^ left(t[0], 2)) << 32 | left(t[2], 1);
}

// sha256_rounds is SHA256H and SHA256H2: four rounds, of which one has the first half of the state as its result and the other the second.
static void sha256_rounds(uint32_t w, bool second) {
    uint64_t *d = hart.v[rd_of(w)], *n = hart.v[rn_of(w)];
    const uint64_t *x = second ? n : d, *y = second ? d : n;
    uint32_t a = word(x, 0), b = word(x, 1), c = word(x, 2), e = word(x, 3);
    uint32_t f = word(y, 0), g = word(y, 1), h = word(y, 2), k = word(y, 3);
    uint64_t wk[2] = {hart.v[rm_of(w)][0], hart.v[rm_of(w)][1]};
    for (unsigned i = 0; i < 4; i++) {
        uint32_t t1 = k + (right(f, 6) ^ right(f, 11) ^ right(f, 25)) + choose(f, g, h) + word(wk, i);
        uint32_t t2 = t1 + (right(a, 2) ^ right(a, 13) ^ right(a, 22)) + majority(a, b, c);
        k = h, h = g, g = f, f = e + t1, e = c, c = b, b = a, a = t2;
    }
    d[0] = second ? (uint64_t)g << 32 | f : (uint64_t)b << 32 | a;
    d[1] = second ? (uint64_t)k << 32 | h : (uint64_t)e << 32 | c;
}

static void sha256_schedule0(uint32_t w) {
    uint64_t *d = hart.v[rd_of(w)], result[2] = {0, 0};
    for (unsigned i = 0; i < 4; i++) {
        uint32_t next = i < 3 ? word(d, i + 1) : word(hart.v[rn_of(w)], 0);
        set_lane(result, 2, i, word(d, i) + (right(next, 7) ^ right(next, 18) ^ next >> 3));
    }
    __builtin_memcpy(d, result, sizeof result);
}

static void sha256_schedule1(uint32_t w) {
    uint64_t *d = hart.v[rd_of(w)], result[2] = {0, 0};
    const uint64_t *n = hart.v[rn_of(w)], *m = hart.v[rm_of(w)];
    for (unsigned i = 0; i < 4; i++) {
        uint32_t before = i < 2 ? word(m, i + 2) : word(result, i - 2), between = i < 3 ? word(n, i + 1) : word(m, 0);
        set_lane(result, 2, i, word(d, i) + (right(before, 17) ^ right(before, 19) ^ before >> 10) + between);
    }
    __builtin_memcpy(d, result, sizeof result);
}

bool execute_crypto(unsigned id, uint32_t w) {
    if (!fp_enabled()) return false;
    slow(2 * SLOW_VECTOR);
    switch (id) {
    case ID_AESE: aes_round(w, false); break;
    case ID_AESD: aes_round(w, true); break;
    case ID_AESMC: aes_mix(w, false); break;
    case ID_AESIMC: aes_mix(w, true); break;
    case ID_PMULL_Q: carryless(w); break;
    case ID_SHA1C: sha1_rounds(w, choose); break;
    case ID_SHA1P: sha1_rounds(w, parity); break;
    case ID_SHA1M: sha1_rounds(w, majority); break;
    case ID_SHA1SU0: sha1_schedule0(w); break;
    case ID_SHA1SU1: sha1_schedule1(w); break;
    case ID_SHA1H:
        hart.v[rd_of(w)][0] = left((uint32_t)hart.v[rn_of(w)][0], 30);
        hart.v[rd_of(w)][1] = 0;
        break;
    case ID_SHA256H: sha256_rounds(w, false); break;
    case ID_SHA256H2: sha256_rounds(w, true); break;
    case ID_SHA256SU0: sha256_schedule0(w); break;
    default: sha256_schedule1(w); break;
    }
    return true;
}
