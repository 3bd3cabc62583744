/* Products of weights and activations, in an order of sums that does not depend on how many columns are multiplied.

   Rows of weights are interleaved: ROWS of them form a group, and each has one lane of a vector. A group is a sequence of
   blocks of 32 elements (of 256 for K-quants and IQ4_XS), each after the scales of all rows. Unpacked, 32 elements are
   eight vectors, each with four elements of each row; packed, they take the bits that the type needs.

   An element of a product is one float: for each block of 32 elements, in their order, the integer sum of the products
   times both scales is added to it with one rounding. So a column has the same bits alone, among others, and on all
   processors. */
#ifndef EDGESPEC_INTERLEAVED_H
#define EDGESPEC_INTERLEAVED_H

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace edgespec {
namespace {

#include "lanes_x86.h"

/* 32 activations of a column: whole numbers of 8 bits, and their scale. The sums of all of them (or of each 16) follow,
   times the offset of the weights, or times the scale. */
struct rounded {
    int8_t numbers[32];
    float scale;
    union {
        int32_t less[2];
        float least[2];
    };
};

struct unpacked {
    I of[8];
};

/* --- types: how their weights are packed ------------------------------------------------------------------------- */

/* What the types have in common.
     BITS      of an element. Four bits are in nibbles; others follow in planes of one or two bits.
     OFFSET    is subtracted from an element.
     BLOCKS    of 32 elements which share a head.
     HALVES    2 if each 16 elements have a scale.
     LEAST     a least value is subtracted from an element.
     SIGNED    elements are signed bytes, or with UNSIGNED_ONLY have 128 added.
     HEAD      bytes before the elements. */
template <int bits_, int offset_, int blocks_, int halves_, bool least_, bool signed_> struct packing {
    enum {
        BITS = bits_,
        OFFSET = signed_ ? UNSIGNED_ONLY * 128 : offset_,
        BLOCKS = blocks_,
        HALVES = halves_,
        LEAST = least_,
        SIGNED = signed_,
        STEP = 4 * ROWS * bits_, /* bytes of 32 elements of all rows */
    };
};

struct scales {
    F of[2], least[2];
};

static inline void unpack_4(const uint8_t * p, unpacked & to) {
    for (int i = 0; i < 4; i++) {
        const I both = load(p + 4 * ROWS * i);
        to.of[i] = bits<0>(both, 15);
        to.of[i + 4] = bits<4>(both, 15);
    }
}

/* Adds bits 4 and 5 to the elements: of each byte of two vectors, two bits for each of four vectors of elements. */
static inline void unpack_2_more(const uint8_t * p, unpacked & to) {
    for (int i = 0; i < 2; i++) {
        const I four = load(p + 4 * ROWS * i);
        to.of[4 * i] = both(to.of[4 * i], bits<-4>(four, 48));
        to.of[4 * i + 1] = both(to.of[4 * i + 1], bits<-2>(four, 48));
        to.of[4 * i + 2] = both(to.of[4 * i + 2], bits<0>(four, 48));
        to.of[4 * i + 3] = both(to.of[4 * i + 3], bits<2>(four, 48));
    }
}

static inline void unpack_2(const uint8_t * p, unpacked & to) {
    for (int i = 0; i < 2; i++) {
        const I four = load(p + 4 * ROWS * i);
        to.of[4 * i] = bits<0>(four, 3);
        to.of[4 * i + 1] = bits<2>(four, 3);
        to.of[4 * i + 2] = bits<4>(four, 3);
        to.of[4 * i + 3] = bits<6>(four, 3);
    }
}

/* Adds a bit to the elements, which is bit AT there: a vector has one for each of the eight vectors of elements. */
template <int AT> static inline void unpack_1_more(const uint8_t * p, unpacked & to) {
    const I eight = load(p);
    to.of[0] = both(to.of[0], bits<0 - AT>(eight, 1 << AT));
    to.of[1] = both(to.of[1], bits<1 - AT>(eight, 1 << AT));
    to.of[2] = both(to.of[2], bits<2 - AT>(eight, 1 << AT));
    to.of[3] = both(to.of[3], bits<3 - AT>(eight, 1 << AT));
    to.of[4] = both(to.of[4], bits<4 - AT>(eight, 1 << AT));
    to.of[5] = both(to.of[5], bits<5 - AT>(eight, 1 << AT));
    to.of[6] = both(to.of[6], bits<6 - AT>(eight, 1 << AT));
    to.of[7] = both(to.of[7], bits<7 - AT>(eight, 1 << AT));
}

template <int BITS> static inline void unpack(const uint8_t * p, unpacked & to) {
    switch (BITS) {
        case 2: unpack_2(p, to); break;
        case 3: unpack_2(p, to); unpack_1_more<2>(p + 8 * ROWS, to); break;
        case 4: unpack_4(p, to); break;
        case 5: unpack_4(p, to); unpack_1_more<4>(p + 16 * ROWS, to); break;
        case 6: unpack_4(p, to); unpack_2_more(p + 16 * ROWS, to); break;
        default:
            for (int i = 0; i < 8; i++) {
                to.of[i] = load(p + 4 * ROWS * i);
            }
    }
}

/* Q8_0, Q4_0, Q5_0: a scale. */
template <int bits_, int offset_, bool signed_> struct simple : packing<bits_, offset_, 1, 1, false, signed_> {
    enum { HEAD = 2 * ROWS };
    struct head {
        F d;
    };
    static inline head read(const uint8_t * p) { return {halves(p)}; }
    static inline scales of(const head & h, const uint8_t *, int) { return {{h.d}, {}}; }
    static inline void elements(const uint8_t * p, unpacked & to) { unpack<bits_>(p, to); }
};
typedef simple<8, 0, true> q8_0;
typedef simple<4, 8, false> q4_0;
typedef simple<5, 16, false> q5_0;

/* Q4_1, Q5_1: a scale and a least value, which is added. */
template <int bits_> struct with_least : packing<bits_, 0, 1, 1, true, false> {
    enum { HEAD = 4 * ROWS };
    struct head {
        F d, m;
    };
    static inline head read(const uint8_t * p) { return {halves(p), mul(halves(p + 2 * ROWS), floats(-1))}; }
    static inline scales of(const head & h, const uint8_t *, int) { return {{h.d}, {h.m}}; }
    static inline void elements(const uint8_t * p, unpacked & to) { unpack<bits_>(p, to); }
};
typedef with_least<4> q4_1;
typedef with_least<5> q5_1;

/* Q4_K, Q5_K: both scales of 256 elements, and for each 32 elements a factor of each. */
template <int bits_> struct k_of_32 : packing<bits_, 0, 8, 1, true, false> {
    enum { HEAD = 4 * ROWS + 16 * ROWS };
    struct head {
        F d, m;
    };
    static inline head read(const uint8_t * p) { return {halves(p), halves(p + 2 * ROWS)}; }
    static inline scales of(const head & h, const uint8_t * p, int block) {
        const uint8_t * at = p + 4 * ROWS + 2 * ROWS * block;
        return {{mul(h.d, to_floats(widened(bytes(at))))}, {mul(h.m, to_floats(widened(bytes(at + ROWS))))}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) { unpack<bits_>(p, to); }
};
typedef k_of_32<4> q4_k;
typedef k_of_32<5> q5_k;

/* Q6_K, Q3_K: a scale, and for each 16 elements a factor with a sign. */
template <int bits_, int offset_> struct k_of_16 : packing<bits_, offset_, 8, 2, false, false> {
    enum { HEAD = 2 * ROWS + 16 * ROWS };
    struct head {
        F d;
    };
    static inline head read(const uint8_t * p) { return {halves(p)}; }
    static inline scales of(const head & h, const uint8_t * p, int block) {
        const uint8_t * at = p + 2 * ROWS + 2 * ROWS * block;
        return {{mul(h.d, to_floats(widened_signed(bytes(at)))), mul(h.d, to_floats(widened_signed(bytes(at + ROWS))))},
                {}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) { unpack<bits_>(p, to); }
};
typedef k_of_16<6, 32> q6_k;
typedef k_of_16<3, 4> q3_k;

/* Q2_K: both scales, and for each 16 elements a factor of each, in a byte. */
struct q2_k : packing<2, 0, 8, 2, true, false> {
    enum { HEAD = 4 * ROWS + 16 * ROWS };
    struct head {
        F d, m;
    };
    static inline head read(const uint8_t * p) { return {halves(p), halves(p + 2 * ROWS)}; }
    static inline scales of(const head & h, const uint8_t * p, int block) {
        const uint8_t * at = p + 4 * ROWS + 2 * ROWS * block;
        const S one = bytes(at), two = bytes(at + ROWS);
        return {{mul(h.d, to_floats(widened(low_of(one)))), mul(h.d, to_floats(widened(low_of(two))))},
                {mul(h.m, to_floats(widened(high_of(one)))), mul(h.m, to_floats(widened(high_of(two))))}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) { unpack<2>(p, to); }
};

enum { SHIFT = UNSIGNED_ONLY * 128 };
#define TABLE(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                                          \
    {(int8_t) (a + SHIFT), (int8_t) (b + SHIFT), (int8_t) (c + SHIFT), (int8_t) (d + SHIFT), (int8_t) (e + SHIFT),     \
     (int8_t) (f + SHIFT), (int8_t) (g + SHIFT), (int8_t) (h + SHIFT), (int8_t) (i + SHIFT), (int8_t) (j + SHIFT),     \
     (int8_t) (k + SHIFT), (int8_t) (l + SHIFT), (int8_t) (m + SHIFT), (int8_t) (n + SHIFT), (int8_t) (o + SHIFT),     \
     (int8_t) (p + SHIFT)}
static const int8_t looked_up_iq4[16] =
    TABLE(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
static const int8_t looked_up_mxfp4[16] = TABLE(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

static inline void look_up(const uint8_t * p, const int8_t * table, unpacked & to) {
    unpack_4(p, to);
    for (int i = 0; i < 8; i++) {
        to.of[i] = looked_up(to.of[i], table);
    }
}

struct iq4_nl : simple<4, 0, true> {
    static inline void elements(const uint8_t * p, unpacked & to) { look_up(p, looked_up_iq4, to); }
};

struct iq4_xs : packing<4, 0, 8, 1, false, true> {
    enum { HEAD = 2 * ROWS + 8 * ROWS };
    struct head {
        F d;
    };
    static inline head read(const uint8_t * p) { return {halves(p)}; }
    static inline scales of(const head & h, const uint8_t * p, int block) {
        return {{mul(h.d, to_floats(widened_signed(bytes(p + 2 * ROWS + ROWS * block))))}, {}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) { look_up(p, looked_up_iq4, to); }
};

/* MXFP4: a power of two, as the exponent of a float (that of ggml less one, since the elements are doubled). */
struct mxfp4 : packing<4, 0, 1, 1, false, true> {
    enum { HEAD = ROWS };
    struct head {
        F d;
    };
    static inline head read(const uint8_t * p) { return {as_floats(up<23>(widened(bytes(p))))}; }
    static inline scales of(const head & h, const uint8_t *, int) { return {{h.d}, {}}; }
    static inline void elements(const uint8_t * p, unpacked & to) { look_up(p, looked_up_mxfp4, to); }
};

/* --- products ---------------------------------------------------------------------------------------------------- */

enum { AHEAD = 4096 }; /* bytes between a read and its prefetch: processors wait for weights, since each is read once */

#define EACH_COLUMN UNROLLED for (int j = 0; j < N; j++)
#define EACH_VECTOR UNROLLED for (int i = 0; i < 8; i++)

/* Multiplies a group of rows by N columns, which are `rounded`; c[j] are the ROWS results of a column. `is_new`: the
   group was not read just before. */
template <class T, int N>
static inline void multiply(const uint8_t * w, int64_t blocks, bool is_new, const char * const * columns,
                            float (*c)[ROWS]) {
    enum { HALF = 8 / T::HALVES };
    F sums[N];
    const char * a[N];
    EACH_COLUMN {
        sums[j] = floats(0);
        a[j] = columns[j];
    }
    int64_t at = 0;
    for (int64_t block = 0; block < blocks; block += T::BLOCKS, w += T::HEAD + T::BLOCKS * T::STEP) {
        const typename T::head head = T::read(w);
        ROLLED
        for (int sub = 0; sub < T::BLOCKS; sub++, at += sizeof(rounded)) {
            unpacked x;
            for (int i = 0; is_new && i < T::STEP + T::HEAD / T::BLOCKS; i += 64) {
                prefetch(w + sub * (T::STEP + T::HEAD / T::BLOCKS) + i + AHEAD);
            }
            T::elements(w + T::HEAD + sub * T::STEP, x);
            const scales s = T::of(head, w, sub);
            EACH_COLUMN {
                const rounded * of = (const rounded *) (a[j] + at);
                const F scale = floats(of->scale);
                I sum[2] = {ints(T::OFFSET ? of->less[0] : 0), ints(T::OFFSET && T::HALVES > 1 ? of->less[1] : 0)};
                EACH_VECTOR {
                    int32_t four;
                    memcpy(&four, of->numbers + 4 * i, sizeof(four));
                    I & to = sum[i / HALF];
                    to = T::SIGNED ? dot_signed(to, x.of[i], four) : dot(to, x.of[i], four);
                }
                for (int half = 0; half < T::HALVES; half++) {
                    sums[j] = fma(to_floats(sum[half]), mul(s.of[half], scale), sums[j]);
                    if (T::LEAST) {
                        sums[j] = less(s.least[half], floats(of->least[half]), sums[j]);
                    }
                }
            }
        }
    }
    EACH_COLUMN {
        store(c[j], sums[j]);
    }
}

/* F16 and BF16: an element of each row, then the next one. Columns are floats. The products of even and of odd elements
   are added up in a sum each. */
template <bool BRAIN, int N>
static inline void multiply_wide(const uint8_t * w, int64_t k, bool is_new, const char * const * columns,
                                 float (*c)[ROWS]) {
    F even[N], odd[N];
    const float * a[N];
    EACH_COLUMN {
        even[j] = odd[j] = floats(0);
        a[j] = (const float *) columns[j];
    }
    for (int64_t i = 0; i < k; i += 2, w += 4 * ROWS) {
        if (is_new && (uintptr_t) w % 64 < 4 * ROWS) {
            prefetch(w + AHEAD);
        }
        const F x = BRAIN ? as_floats(up<16>(words(w))) : halves(w);
        const F y = BRAIN ? as_floats(up<16>(words(w + 2 * ROWS))) : halves(w + 2 * ROWS);
        EACH_COLUMN {
            even[j] = fma(x, floats(a[j][i]), even[j]);
            odd[j] = fma(y, floats(a[j][i + 1]), odd[j]);
        }
    }
    EACH_COLUMN {
        store(c[j], add(even[j], odd[j]));
    }
}

/* --- single rows ------------------------------------------------------------------------------------------------- */

/* Writes the weights of one row of a group. */
template <class T> static void read_row(const uint8_t * w, int64_t blocks, int lane, float * to) {
    uint8_t of[8][4 * ROWS];
    float scale[2][ROWS], least[2][ROWS] = {};
    for (int64_t block = 0; block < blocks; w += T::HEAD + T::BLOCKS * T::STEP) {
        const typename T::head head = T::read(w);
        for (int sub = 0; sub < T::BLOCKS; sub++, block++) {
            unpacked x;
            T::elements(w + T::HEAD + sub * T::STEP, x);
            const scales s = T::of(head, w, sub);
            for (int i = 0; i < 8; i++) {
                store_ints(of[i], x.of[i]);
            }
            for (int half = 0; half < T::HALVES; half++) {
                store(scale[half], s.of[half]);
                if (T::LEAST) {
                    store(least[half], s.least[half]);
                }
            }
            for (int i = 0; i < 32; i++) {
                const uint8_t element = of[i / 4][4 * lane + i % 4];
                const int whole = T::SIGNED ? (int8_t) (element - SHIFT) : element - T::OFFSET;
                const int half = i * T::HALVES / 32;
                *to++ = scale[half][lane] * (float) whole - least[half][lane];
            }
        }
    }
}

template <bool BRAIN> static void read_wide_row(const uint8_t * w, int64_t k, int lane, float * to) {
    for (int64_t i = 0; i < k; i++, w += 2 * ROWS) {
        float of[ROWS];
        store(of, BRAIN ? as_floats(up<16>(words(w))) : halves(w));
        to[i] = of[lane];
    }
}

}  // namespace
}  // namespace edgespec
#endif
