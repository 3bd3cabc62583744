/* Products of weights and activations, in an order of sums that does not depend on how many columns are multiplied.

   Rows of weights are interleaved: ROWS of them form a group, and each has one lane of a vector. A group is a sequence of
   blocks of 32 elements (of 256 for K-quants and most IQ-quants), each after the scales of all rows. Unpacked, 32 elements are
   eight vectors, each with four elements of each row; packed, they take the bits that the type needs.

   An element of a product is one float: for each block of 32 elements, in their order, the integer sum of the products
   times both scales is added to it with one rounding. So a column has the same bits alone, among others, and on all
   processors. */
#ifndef EDGESPEC_INTERLEAVED_H
#define EDGESPEC_INTERLEAVED_H

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include "lanes.h"

namespace edgespec {
namespace {

#include EDGESPEC_LANES

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

#define EACH_VECTOR UNROLLED for (int i = 0; i < 8; i++)

/* --- types: how their weights are packed ------------------------------------------------------------------------- */

/* What the types have in common.
     BITS      of an element. Four bits are in nibbles; others follow in planes of one or two bits. 0 if a type has
               another form.
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
        case 1: /* twice the bit */
            for (int i = 0; i < 8; i++) {
                to.of[i] = ints(0);
            }
            unpack_1_more<1>(p, to);
            break;
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

/* A scale. TQ1_0 has the same form as TQ2_0. */
template <int bits_, int offset_, bool signed_, int blocks_ = 1>
struct simple : packing<bits_, offset_, blocks_, 1, false, signed_> {
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
typedef simple<1, 1, false, 4> q1_0;
typedef simple<2, 1, false, 2> q2_0;
typedef simple<2, 1, false, 8> tq2_0;

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

/* NVFP4: for each 16 elements a scale of eight bits, which is halved, since the elements are doubled. */
struct nvfp4 : packing<4, 0, 2, 2, false, true> {
    enum { HEAD = 4 * ROWS };
    struct head {};
    static inline head read(const uint8_t *) { return {}; }
    static inline scales of(const head &, const uint8_t * p, int block) {
        const uint8_t * at = p + 2 * ROWS * block;
        return {{mul(eights(at), floats(128)), mul(eights(at + ROWS), floats(128))}, {}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) { look_up(p, looked_up_mxfp4, to); }
};

/* --- types with a codebook: four or eight elements at a time are an entry of a grid ------------------------------ */

/* What they have in common. 32 elements of a row take PART bytes: those of the indices, then their higher bits, then a bit
   for each sign. Scales are odd multiples of the DIVISOR-th part of the scale of 256 elements. */
template <int part_, int head_, int offset_, int halves_, int divisor_>
struct on_grid : packing<0, offset_, 8, halves_, false, false> {
    enum { STEP = part_ * ROWS, HEAD = head_ * ROWS };
    struct head {
        F d;
    };
    static inline head read(const uint8_t * p) { return {mul(halves(p), floats(1.0f / divisor_))}; }
    static inline F odd(const head & h, I n) { return mul(h.d, to_floats(both(up<1>(n), ints(1)))); }
};

/* Scales of four bits for each 16 elements. */
template <int part_, int offset_> struct on_grid_of_16 : on_grid<part_, 10, offset_, 2, 8> {
    typedef typename on_grid<part_, 10, offset_, 2, 8>::head head;
    static inline scales of(const head & h, const uint8_t * p, int block) {
        const S two = bytes(p + (2 + block) * ROWS);
        return {{on_grid_of_16::odd(h, widened(low_of(two))), on_grid_of_16::odd(h, widened(high_of(two)))}, {}};
    }
};

/* COUNT indices: a byte of each, and WIDTH bits above it, which follow each other in `higher`. */
template <int COUNT, int WIDTH> static inline void indices(const uint8_t * p, I higher, I * to) {
    higher = up<8>(higher);
    UNROLLED
    for (int i = 0; i < COUNT; i++) {
        to[i] = both(widened(bytes(p + ROWS * i)), masked(higher, ((1 << WIDTH) - 1) << 8));
        higher = down<WIDTH>(higher);
    }
}

static inline M bits_at(const uint8_t * p) {
    M x;
    memcpy(&x, p, sizeof(x));
    return x;
}

enum { SIGNS = ROWS / 2 }; /* bytes of the signs of a vector */

static inline void add_signs(const uint8_t * p, unpacked & to) {
    EACH_VECTOR { to.of[i] = plus_or_minus(ints(0x40404040), to.of[i], bits_at(p + SIGNS * i)); }
}

/* Of eight signs only seven are stored, since the number of negative ones is even. The bits between them are a nibble of
   each row, which is something else. */
static const M EIGHTH = (M) 0x8888888888888888;

static inline S between_signs(const uint8_t * p) {
    M all = 0;
    UNROLLED
    for (int i = 0; i < 4; i++) {
        all |= (bits_at(p + SIGNS * (2 * i + 1)) & EIGHTH) >> (3 - i);
    }
    return nibbles(all);
}

static inline void add_even_signs(const uint8_t * p, unpacked & to) {
    UNROLLED
    for (int i = 0; i < 8; i += 2) {
        const M one = bits_at(p + SIGNS * i), two = bits_at(p + SIGNS * (i + 1)) & ~EIGHTH;
        M odd = one ^ two;
        odd ^= odd << 2;
        odd ^= odd << 1;
        to.of[i] = plus_or_minus(ints(0x40404040), to.of[i], one);
        to.of[i + 1] = plus_or_minus(ints(0x40404040), to.of[i + 1], two | (odd & EIGHTH));
    }
}

/* Grids of eight elements, of which each is a nibble: of byte j, the lower one is element j and the higher one j + 4. They
   are filled in when weights of the type are interleaved. */
template <class T> struct grid {
    static uint32_t of[T::ENTRIES];
};
template <class T> uint32_t grid<T>::of[T::ENTRIES];

static const int8_t looked_up_iq2[16] = {8, 25, 43};
static const int8_t looked_up_iq1[16] = {0, 8, 16, 0, 2, 10, 18};

template <class T> static inline void look_up_eights(const I * at, const int8_t * table, unpacked & to) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
        const I eight = gathered(grid<T>::of, at[i]);
        to.of[2 * i] = looked_up(bits<0>(eight, 15), table);
        to.of[2 * i + 1] = looked_up(bits<4>(eight, 15), table);
    }
}

static inline void look_up_fours(const I * at, const uint32_t * table, unpacked & to) {
    EACH_VECTOR { to.of[i] = gathered(table, at[i]); }
}

/* IQ2_XXS, IQ3_XXS: the scale of 32 elements is between the signs, after this many bytes. */
template <int part_, int after_, int divisor_> struct on_grid_of_32 : on_grid<part_, 2, 64, 1, divisor_> {
    typedef on_grid<part_, 2, 64, 1, divisor_> base;
    static inline scales of(const typename base::head & h, const uint8_t * p, int block) {
        return {{base::odd(h, widened(between_signs(p + base::HEAD + base::STEP * block + after_ * ROWS)))}, {}};
    }
};

struct iq2_xxs : on_grid_of_32<8, 4, 8> {
    enum { ENTRIES = 256 };
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[4];
        indices<4, 0>(p, ints(0), at);
        look_up_eights<iq2_xxs>(at, looked_up_iq2, to);
        add_even_signs(p + 4 * ROWS, to);
    }
};

struct iq2_xs : on_grid_of_16<8, 64> { /* the highest bits of the indices are between the signs */
    enum { ENTRIES = 512 };
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[4];
        indices<4, 1>(p, widened(between_signs(p + 4 * ROWS)), at);
        look_up_eights<iq2_xs>(at, looked_up_iq2, to);
        add_even_signs(p + 4 * ROWS, to);
    }
};

struct iq2_s : on_grid_of_16<9, 64> {
    enum { ENTRIES = 1024 };
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[4];
        indices<4, 2>(p, widened(bytes(p + 4 * ROWS)), at);
        look_up_eights<iq2_s>(at, looked_up_iq2, to);
        add_signs(p + 5 * ROWS, to);
    }
};

struct iq3_xxs : on_grid_of_32<12, 8, 4> {
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[8];
        indices<8, 0>(p, ints(0), at);
        look_up_fours(at, iq3xxs_grid, to);
        add_even_signs(p + 8 * ROWS, to);
    }
};

struct iq3_s : on_grid<13, 6, 64, 1, 1> {
    static inline scales of(const head & h, const uint8_t * p, int block) {
        const S two = bytes(p + (2 + block / 2) * ROWS);
        return {{odd(h, widened(block % 2 ? high_of(two) : low_of(two)))}, {}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[8];
        indices<8, 1>(p, widened(bytes(p + 8 * ROWS)), at);
        look_up_fours(at, iq3s_grid, to);
        add_signs(p + 9 * ROWS, to);
    }
};

/* IQ1_S, IQ1_M: -1, 0 or 1, and an eighth more, or less if bit 11 of the index is set: eight times as much is one of
   looked_up_iq1 less 9. */
struct iq1_s : on_grid<6, 2, 9, 1, 8> { /* two bytes: bits 8 to 10 of four indices, the scale, and their bit 11 */
    enum { ENTRIES = 4096 };
    static inline I two_bytes(const uint8_t * p) { return words(p + 4 * ROWS); }
    static inline scales of(const head & h, const uint8_t * p, int block) {
        return {{odd(h, masked(down<12>(two_bytes(p + HEAD + STEP * block)), 7))}, {}};
    }
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[4];
        indices<4, 3>(p, two_bytes(p), at);
        const I bit_11 = masked(down<4>(two_bytes(p)), 1 << 11);
        for (int i = 0; i < 4; i++) {
            at[i] = both(at[i], bit_11);
        }
        look_up_eights<iq1_s>(at, looked_up_iq1, to);
    }
};

struct iq1_m : on_grid_of_16<6, 9> {
    static inline void elements(const uint8_t * p, unpacked & to) {
        I at[4];
        indices<4, 4>(p, words(p + 4 * ROWS), at);
        look_up_eights<iq1_s>(at, looked_up_iq1, to);
    }
};

/* --- products ---------------------------------------------------------------------------------------------------- */

enum { AHEAD = 4096 }; /* bytes between a read and its prefetch: processors wait for weights, since each is read once */

#define EACH_COLUMN UNROLLED for (int j = 0; j < N; j++)

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
                I sum[2] = {ints(T::OFFSET != 0 ? of->less[0] : 0),
                            ints(T::OFFSET != 0 && T::HALVES > 1 ? of->less[1] : 0)};
                UNROLLED
                for (int i = 0; i < 8; i += 4) {
                    I & to = sum[i / HALF];
                    to = products<T::SIGNED ? 8 : T::BITS == 0 ? 7 : T::BITS>(to, x.of + i, of->numbers + 4 * i);
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

/* Wide types: an element of each row, then the next one. */
struct f32 {
    enum { SIZE = 4 };
    static inline F read(const uint8_t * p) { return load_floats((const float *) p); }
};
struct f16 {
    enum { SIZE = 2 };
    static inline F read(const uint8_t * p) { return halves(p); }
};
struct bf16 {
    enum { SIZE = 2 };
    static inline F read(const uint8_t * p) { return as_floats(up<16>(words(p))); }
};

/* Columns are floats. The products of even and of odd elements are added up in a sum each. */
template <class T, int N>
static inline void multiply_wide(const uint8_t * w, int64_t k, bool is_new, const char * const * columns,
                                 float (*c)[ROWS]) {
    enum { STEP = 2 * T::SIZE * ROWS };
    F even[N], odd[N];
    const float * a[N];
    EACH_COLUMN {
        even[j] = odd[j] = floats(0);
        a[j] = (const float *) columns[j];
    }
    int64_t i = 0;
    for (; i + 1 < k; i += 2, w += STEP) {
        for (int line = 0; is_new && (uintptr_t) w % 64 < STEP && line < STEP; line += 64) {
            prefetch(w + line + AHEAD);
        }
        const F x = T::read(w), y = T::read(w + STEP / 2);
        EACH_COLUMN {
            even[j] = fma(x, floats(a[j][i]), even[j]);
            odd[j] = fma(y, floats(a[j][i + 1]), odd[j]);
        }
    }
    if (i < k) {
        const F x = T::read(w);
        EACH_COLUMN { even[j] = fma(x, floats(a[j][i]), even[j]); }
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

template <class T> static void read_wide_row(const uint8_t * w, int64_t k, int lane, float * to) {
    for (int64_t i = 0; i < k; i++, w += T::SIZE * ROWS) {
        float of[ROWS];
        store(of, T::read(w));
        to[i] = of[lane];
    }
}

}  // namespace
}  // namespace edgespec
#endif
