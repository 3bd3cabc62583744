/* All products of a pass (interleaved.h). Weights in the buffer type of this file are interleaved when they are loaded, a
   group of any others when it is multiplied. */
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "traits.h"

#include "kernels.h"
#include "lanes.h"

const int32_t edgespec_version = EDGESPEC_VERSION;

#ifdef EDGESPEC_LANES

#define GGML_COMMON_IMPL_CPP
#include "interleaved.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

namespace edgespec {
namespace {

constexpr int MOST = 8;               /* columns at once */
constexpr int64_t NEAR = 512 << 10;   /* bytes of activations that stay in the L2 cache */
constexpr int64_t PARALLEL = 1 << 20; /* bytes from which several threads interleave a tensor */

/* --- interleaving --------------------------------------------------------------------------------------------------- */

/* 32 elements of a row, in the order of the row. */
union elements {
    uint8_t of[32];
    uint64_t eight[4];
};

void nibbles(const uint8_t * qs, elements & to) {
    uint64_t pairs[2];
    memcpy(pairs, qs, sizeof(pairs));
    for (int i = 0; i < 2; i++) {
        to.eight[i] = pairs[i] & 0x0f0f0f0f0f0f0f0f;
        to.eight[i + 2] = pairs[i] >> 4 & 0x0f0f0f0f0f0f0f0f;
    }
}

void fifth_bits(const uint8_t * qh, elements & to) {
    for (int i = 0; i < 4; i++) { /* the product has a bit of each of four bytes at its place */
        const uint64_t low = (qh[i] & 15) * 0x00204081 & 0x01010101, high = (qh[i] >> 4) * 0x00204081 & 0x01010101;
        to.eight[i] |= (low | high << 32) << 4;
    }
}

/* How ggml stores a row, by type. `head` copies what all blocks of 32 elements share into a group, `block` the scales of
   one of them, and reads its elements. `to` is the group, and `lane` the place of the row in it. */

#define BOTH GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S /* where ggml gives two members a name together */

template <class B> struct row_with_scale {
    typedef B source;
    static void head(const B & x, uint8_t * to, int lane) { memcpy(to + 2 * lane, &x.d, 2); }
};

template <class B> struct row_with_least {
    typedef B source;
    static void head(const B & x, uint8_t * to, int lane) {
        memcpy(to + 2 * lane, &x.BOTH.d, 2);
        memcpy(to + 2 * ROWS + 2 * lane, &x.BOTH.m, 2);
    }
};

struct row_q8_0 : row_with_scale<block_q8_0> {
    static void block(const source & x, int, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            e.of[j] = (uint8_t) (x.qs[j] + SHIFT);
        }
    }
};

/* Adds what blocks of four or five bits have in common to a row. */
template <class R> struct of_4_bits : R {
    static void block(const typename R::source & x, int, uint8_t *, int, elements & e) { nibbles(x.qs, e); }
};

template <class R> struct of_5_bits : R {
    static void block(const typename R::source & x, int, uint8_t *, int, elements & e) {
        nibbles(x.qs, e);
        fifth_bits(x.qh, e);
    }
};

struct row_mxfp4 {
    typedef block_mxfp4 source;
    static void head(const source & x, uint8_t * to, int lane) { to[lane] = x.e ? x.e - 1 : 0; }
    static void block(const source & x, int, uint8_t *, int, elements & e) { nibbles(x.qs, e); }
};

template <class B> struct row_k {
    typedef B source;
    static void head(const B & x, uint8_t * to, int lane) {
        memcpy(to + 2 * lane, &x.BOTH.d, 2);
        memcpy(to + 2 * ROWS + 2 * lane, &x.BOTH.dmin, 2);
    }
};

/* Q4_K and Q5_K have eight scales and eight least values of six bits. */
template <class B> struct row_k_of_32 : row_k<B> {
    static void head(const B & x, uint8_t * to, int lane) {
        row_k<B>::head(x, to, lane);
        uint32_t of[3];
        memcpy(of, x.scales, sizeof(of));
        const uint32_t scales[] = {of[0] & 0x3F3F3F3F, (of[2] & 0x0F0F0F0F) | (of[0] >> 2 & 0x30303030)};
        const uint32_t least[] = {of[1] & 0x3F3F3F3F, (of[2] >> 4 & 0x0F0F0F0F) | (of[1] >> 2 & 0x30303030)};
        uint8_t * at = to + 4 * ROWS + lane;
        for (int block = 0; block < 8; block++, at += 2 * ROWS) {
            at[0] = (uint8_t) (scales[block / 4] >> 8 * (block % 4));
            at[ROWS] = (uint8_t) (least[block / 4] >> 8 * (block % 4));
        }
    }
};

struct row_q4_k : row_k_of_32<block_q4_K> {
    static void block(const source & x, int block, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            e.of[j] = x.qs[32 * (block / 2) + j] >> 4 * (block % 2) & 15;
        }
    }
};

struct row_q5_k : row_k_of_32<block_q5_K> {
    static void block(const source & x, int block, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            e.of[j] = (x.qs[32 * (block / 2) + j] >> 4 * (block % 2) & 15) | (x.qh[j] >> block & 1) << 4;
        }
    }
};

struct row_q6_k : row_with_scale<block_q6_K> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements & e) {
        uint8_t * at = to + 2 * ROWS + 2 * ROWS * block + lane;
        at[0] = (uint8_t) x.scales[2 * block];
        at[ROWS] = (uint8_t) x.scales[2 * block + 1];
        const int half = block / 4, quarter = block % 4;
        for (int j = 0; j < 32; j++) {
            const int low = x.ql[64 * half + 32 * (quarter % 2) + j] >> 4 * (quarter / 2) & 15;
            e.of[j] = (uint8_t) (low | (x.qh[32 * half + j] >> 2 * quarter & 3) << 4);
        }
    }
};

struct row_q3_k : row_with_scale<block_q3_K> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements & e) {
        uint8_t * at = to + 2 * ROWS + 2 * ROWS * block + lane;
        for (int i = 0; i < 2; i++) {
            const int n = 2 * block + i;
            const int low = x.scales[n % 8] >> 4 * (n / 8) & 15, high = x.scales[8 + n % 4] >> 2 * (n / 4) & 3;
            at[ROWS * i] = (uint8_t) ((low | high << 4) - 32);
        }
        for (int j = 0; j < 32; j++) {
            const int low = x.qs[32 * (block / 4) + j] >> 2 * (block % 4) & 3;
            e.of[j] = (uint8_t) (low | (x.hmask[j] >> block & 1) << 2);
        }
    }
};

struct row_q2_k : row_k<block_q2_K> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements & e) {
        uint8_t * at = to + 4 * ROWS + 2 * ROWS * block + lane;
        at[0] = x.scales[2 * block];
        at[ROWS] = x.scales[2 * block + 1];
        for (int j = 0; j < 32; j++) {
            e.of[j] = x.qs[32 * (block / 4) + j] >> 2 * (block % 4) & 3;
        }
    }
};

struct row_iq4_xs : row_with_scale<block_iq4_xs> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements & e) {
        const int low = x.scales_l[block / 2] >> 4 * (block % 2) & 15, high = x.scales_h >> 2 * block & 3;
        to[2 * ROWS + ROWS * block + lane] = (uint8_t) ((low | high << 4) - 32);
        nibbles(x.qs + 16 * block, e);
    }
};

struct row_nvfp4 {
    typedef block_nvfp4 source;
    static void head(const source & x, uint8_t * to, int lane) {
        for (int i = 0; i < 4; i++) {
            to[ROWS * i + lane] = x.d[i] == 0x7f ? 0 : x.d[i] & 0x7f; /* 0x7f is no number */
        }
    }
    static void block(const source & x, int block, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            e.of[j] = x.qs[16 * block + j / 16 * 8 + j % 8] >> 4 * (j / 8 % 2) & 15;
        }
    }
};

/* Q1_0, Q2_0: elements of so many bits, in their order. */
template <class B, int bits_> struct row_of_bits : row_with_scale<B> {
    static void block(const B & x, int block, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            const int at = bits_ * (32 * block + j);
            e.of[j] = x.qs[at / 8] >> at % 8 & ((1 << bits_) - 1);
        }
    }
};

struct row_tq2_0 : row_with_scale<block_tq2_0> {
    static void block(const source & x, int block, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            e.of[j] = x.qs[32 * (block / 4) + j] >> 2 * (block % 4) & 3;
        }
    }
};

/* Bytes have five digits with a base of three: 32 bytes hold the first 160 elements, 16 the next 80, and four the last 16,
   in four digits. Of each byte come the first digits, then the second ones. */
struct row_tq1_0 : row_with_scale<block_tq1_0> {
    static void block(const source & x, int block, uint8_t *, int, elements & e) {
        for (int j = 0; j < 32; j++) {
            const int i = 32 * block + j;
            const uint8_t * from = i < 160 ? x.qs : i < 240 ? x.qs + 32 : x.qh;
            const int n = i < 160 ? 32 : i < 240 ? 16 : 4, first = i < 160 ? 0 : i < 240 ? 160 : 240;
            uint8_t digits = from[(i - first) % n];
            for (int digit = 0; digit < (i - first) / n; digit++) {
                digits = (uint8_t) (3 * digits);
            }
            e.of[j] = (uint8_t) (3 * digits >> 8);
        }
    }
};

/* Types with a codebook write their parts of a block themselves. */
template <class T> uint8_t * part_of(uint8_t * group, int block) { return group + T::HEAD + T::STEP * block; }

template <int N> void put_bytes(const uint8_t * from, uint8_t * to, int lane) {
    for (int i = 0; i < N; i++) {
        to[ROWS * i + lane] = from[i];
    }
}

/* The signs of the eight elements of number i. */
void put_signs(int signs, uint8_t * to, int lane, int i) {
    to[SIGNS * 2 * i + lane / 2] |= (uint8_t) ((signs & 15) << 4 * (lane % 2));
    to[SIGNS * (2 * i + 1) + lane / 2] |= (uint8_t) (signs >> 4 << 4 * (lane % 2));
}

/* Signs of which the last one is not stored, and bits of something else in its place. */
void put_even_signs(uint32_t signs, int others, uint8_t * to, int lane) {
    for (int i = 0; i < 4; i++) {
        put_signs((int) (signs >> 7 * i & 127) | (others >> i & 1) << 7, to, lane, i);
    }
}

/* Fills in the grid of a type, at the first call. */
template <class T> void fill_grid(const uint64_t * from, int (*nibble)(int8_t element, int entry), int n) {
    static const bool is_filled = [&] {
        for (int i = 0; i < T::ENTRIES; i++) {
            int8_t eight[8];
            memcpy(eight, from + i % n, sizeof(eight));
            for (int j = 0; j < 8; j++) {
                grid<T>::of[i] |= (uint32_t) nibble(eight[j], i) << (8 * (j % 4) + j / 4 * 4);
            }
        }
        return true;
    }();
    (void) is_filled;
}

int nibble_of_iq2(int8_t element, int) { return element >> 4; } /* 8, 25 or 43 */

int nibble_of_iq1(int8_t element, int entry) { return element + 1 + (entry < NGRID_IQ1S ? 4 : 0); }

struct row_iq2_xxs : row_with_scale<block_iq2_xxs> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        fill_grid<iq2_xxs>(iq2xxs_grid, nibble_of_iq2, 256);
        uint8_t * part = part_of<iq2_xxs>(to, block);
        uint32_t signs;
        memcpy(&signs, x.qs + 4 * block + 2, sizeof(signs));
        put_bytes<4>((const uint8_t *) (x.qs + 4 * block), part, lane);
        put_even_signs(signs, signs >> 28, part + 4 * ROWS, lane);
    }
};

struct row_iq2_xs : row_with_scale<block_iq2_xs> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        fill_grid<iq2_xs>(iq2xs_grid, nibble_of_iq2, 512);
        uint8_t * part = part_of<iq2_xs>(to, block);
        to[(2 + block) * ROWS + lane] = x.scales[block];
        for (int i = 0; i < 4; i++) {
            const int index = x.qs[4 * block + i] & 511, signs = x.qs[4 * block + i] >> 9;
            part[ROWS * i + lane] = (uint8_t) index;
            put_signs(signs | index >> 8 << 7, part + 4 * ROWS, lane, i);
        }
    }
};

struct row_iq2_s : row_with_scale<block_iq2_s> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        fill_grid<iq2_s>(iq2s_grid, nibble_of_iq2, 1024);
        uint8_t * part = part_of<iq2_s>(to, block);
        to[(2 + block) * ROWS + lane] = x.scales[block];
        put_bytes<4>(x.qs + 4 * block, part, lane);
        part[4 * ROWS + lane] = x.qh[block];
        for (int i = 0; i < 4; i++) {
            put_signs(x.qs[32 + 4 * block + i], part + 5 * ROWS, lane, i);
        }
    }
};

struct row_iq3_xxs : row_with_scale<block_iq3_xxs> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        uint8_t * part = part_of<iq3_xxs>(to, block);
        uint32_t signs;
        memcpy(&signs, x.qs + 64 + 4 * block, sizeof(signs));
        put_bytes<8>(x.qs + 8 * block, part, lane);
        put_even_signs(signs, signs >> 28, part + 8 * ROWS, lane);
    }
};

struct row_iq3_s : row_with_scale<block_iq3_s> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        uint8_t * part = part_of<iq3_s>(to, block);
        to[(2 + block / 2) * ROWS + lane] = x.scales[block / 2];
        put_bytes<8>(x.qs + 8 * block, part, lane);
        part[8 * ROWS + lane] = x.qh[block];
        for (int i = 0; i < 4; i++) {
            put_signs(x.signs[4 * block + i], part + 9 * ROWS, lane, i);
        }
    }
};

struct row_iq1_s : row_with_scale<block_iq1_s> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        fill_grid<iq1_s>(iq1s_grid, nibble_of_iq1, NGRID_IQ1S);
        uint8_t * part = part_of<iq1_s>(to, block);
        put_bytes<4>(x.qs + 4 * block, part, lane);
        memcpy(part + 4 * ROWS + 2 * lane, x.qh + block, 2);
    }
};

struct row_iq1_m {
    typedef block_iq1_m source;
    static int scales(const source & x, int i) { return x.scales[2 * i] | x.scales[2 * i + 1] << 8; }
    static void head(const source & x, uint8_t * to, int lane) {
        const uint16_t d = (uint16_t) (scales(x, 0) >> 12 | (scales(x, 1) >> 8 & 0xf0) | (scales(x, 2) >> 4 & 0xf00) |
                                       (scales(x, 3) & 0xf000));
        memcpy(to + 2 * lane, &d, sizeof(d));
    }
    static void block(const source & x, int block, uint8_t * to, int lane, elements &) {
        fill_grid<iq1_s>(iq1s_grid, nibble_of_iq1, NGRID_IQ1S);
        uint8_t * part = part_of<iq1_m>(to, block);
        const int two = scales(x, block / 2) >> 6 * (block % 2);
        to[(2 + block) * ROWS + lane] = (uint8_t) ((two & 7) | (two >> 3 & 7) << 4);
        put_bytes<4>(x.qs + 4 * block, part, lane);
        memcpy(part + 4 * ROWS + 2 * lane, x.qh + 2 * block, 2);
    }
};

/* Packs the elements of all rows of a group. */
template <int BITS> void pack(const elements * rows, uint8_t * to) {
    enum { LOW = BITS == 8 ? 8 : BITS >= 4 ? 4 : BITS >= 2 ? 2 : 0, PLANES = BITS == 6 ? 2 : BITS % 2 };
    I x[8];
    transpose(rows, x);
    for (int i = 0; i < LOW; i++) {
        const I packed = LOW == 8   ? x[i]
                         : LOW == 4 ? both(bits<0>(x[i % 4], 15), bits<-4>(x[i % 4 + 4], 0xF0))
                                    : both(both(bits<0>(x[4 * (i % 2)], 3), bits<-2>(x[4 * (i % 2) + 1], 12)),
                                           both(bits<-4>(x[4 * (i % 2) + 2], 48), bits<-6>(x[4 * (i % 2) + 3], 0xC0)));
        store_ints(to + 4 * ROWS * i, packed);
    }
    if (PLANES == 1) {
        const I one = both(both(bits<LOW>(x[0], 1), bits<LOW - 1>(x[1], 2)),
                           both(bits<LOW - 2>(x[2], 4), bits<LOW - 3>(x[3], 8)));
        const I two = both(both(bits<LOW - 4>(x[4], 16), bits<LOW - 5>(x[5], 32)),
                           both(bits<LOW - 6>(x[6], 64), bits<LOW - 7>(x[7], 128)));
        store_ints(to + 4 * ROWS * LOW, both(one, two));
    }
    for (int i = 0; PLANES == 2 && i < 2; i++) {
        const I * four = x + 4 * i;
        store_ints(to + 4 * ROWS * (LOW + i), both(both(bits<LOW>(four[0], 3), bits<LOW - 2>(four[1], 12)),
                                                   both(bits<LOW - 4>(four[2], 48), bits<LOW - 6>(four[3], 0xC0))));
    }
}

template <class T, class R> void interleave(const void * rows, int64_t n, size_t size, int64_t blocks, uint8_t * to) {
    enum { AT_ONCE = 8 / T::BLOCKS }; /* what is stored can be loaded as wider vectors some time later */
    const size_t step = T::HEAD + T::BLOCKS * T::STEP;
    const int64_t steps = blocks / T::BLOCKS;
    elements e[8][ROWS] = {};
    for (int64_t first = 0; first < steps; first += AT_ONCE, to += AT_ONCE * step) {
        const int here = (int) std::min<int64_t>(AT_ONCE, steps - first);
        if (n < ROWS || T::BITS == 0) { /* bits are added to what is there */
            memset(to, 0, here * step);
        }
        for (int lane = 0; lane < n; lane++) {
            const auto * x = (const typename R::source *) ((const char *) rows + lane * size) + first;
            for (size_t line = 0; line < AT_ONCE * sizeof(*x); line += 64) {
                prefetch((const char *) x + ROWS * size + line); /* for the next group */
            }
            for (int i = 0; i < here; i++, x++) {
                R::head(*x, to + i * step, lane);
                UNROLLED
                for (int block = 0; block < T::BLOCKS; block++) {
                    R::block(*x, block, to + i * step, lane, e[i * T::BLOCKS + block][lane]);
                }
            }
        }
        for (int block = 0; T::BITS != 0 && block < here * T::BLOCKS; block++) {
            pack<T::BITS>(e[block], part_of<T>(to + block / T::BLOCKS * step, block % T::BLOCKS));
        }
    }
}

template <class N> void interleave_wide(const void * rows, int64_t n, size_t size, int64_t k, uint8_t * to) {
    enum { AT_ONCE = 64 / sizeof(N) }; /* a line of the cache */
    N * numbers = (N *) to;
    const auto row = [&](int64_t lane) { return (const N *) ((const char *) rows + lane * size); };
    int64_t i = 0;
    for (elements part[2][ROWS] = {}; i + AT_ONCE <= k; i += AT_ONCE) {
        for (int lane = 0; lane < n; lane++) {
            prefetch(row(lane + ROWS) + i);
            memcpy(&part[0][lane], row(lane) + i, 32);
            memcpy(&part[1][lane], row(lane) + i + AT_ONCE / 2, 32);
        }
        for (int half = 0; half < 2; half++) {
            I x[8];
            transpose(part[half], x);
            for (int j = 0; j < 8; j++) {
                void * at = numbers + (i + AT_ONCE / 2 * half) * ROWS + 4 * ROWS / sizeof(N) * j;
                sizeof(N) == 2 ? store_words(at, x[j]) : store_ints(at, x[j]);
            }
        }
    }
    for (; i < k; i++) {
        for (int lane = 0; lane < ROWS; lane++) {
            numbers[i * ROWS + lane] = lane < n ? row(lane)[i] : 0;
        }
    }
}

/* --- kinds ---------------------------------------------------------------------------------------------------------- */

typedef void multiplying(const uint8_t * w, int64_t blocks, bool is_new, const char * const * columns,
                         float (*c)[ROWS]);

/* What is known of a type, and its functions. `wide` types are F32, F16 and BF16, whose activations stay floats: it is the
   size of an element. Blocks have 32 elements, or one of a wide type. */
struct kind {
    int64_t unit; /* elements of a block of ggml */
    size_t step; /* bytes of a group for these elements */
    int halves, offset;
    bool least;
    int wide;

    int64_t blocks(int64_t k) const { return wide ? k : k / 32; }
    /* The bytes of a column of k rounded activations. */
    int64_t size_of_column(int64_t k) const { return wide ? 0 : blocks(k) * (int64_t) sizeof(rounded); }

    void (*interleave)(const void * rows, int64_t n, size_t size, int64_t blocks, uint8_t * to);
    void (*read_row)(const uint8_t * group, int64_t blocks, int lane, float * to);
    multiplying * multiply[MOST];
};

template <class T, class R> constexpr kind kind_of() {
    return {32 * T::BLOCKS,
            T::HEAD + T::BLOCKS * T::STEP,
            T::HALVES,
            T::OFFSET,
            (bool) T::LEAST,
            0,
            interleave<T, R>,
            read_row<T>,
            {multiply<T, 1>, multiply<T, 2>, multiply<T, 3>, multiply<T, 4>, multiply<T, 5>, multiply<T, 6>,
             multiply<T, 7>, multiply<T, 8>}};
}

template <class T> constexpr kind wide_kind() {
    return {1,
            T::SIZE * ROWS,
            1,
            0,
            false,
            T::SIZE,
            interleave_wide<std::conditional_t<T::SIZE == 2, uint16_t, uint32_t>>,
            read_wide_row<T>,
            {multiply_wide<T, 1>, multiply_wide<T, 2>, multiply_wide<T, 3>, multiply_wide<T, 4>, multiply_wide<T, 5>,
             multiply_wide<T, 6>, multiply_wide<T, 7>, multiply_wide<T, 8>}};
}

const kind * kind_of(ggml_type type) {
#define CASE(type, ...)                                                                                                \
    case type: {                                                                                                       \
        static constexpr kind k = __VA_ARGS__();                                                                       \
        return &k;                                                                                                     \
    }
    switch (type) {
        CASE(GGML_TYPE_F32, wide_kind<f32>)
        CASE(GGML_TYPE_F16, wide_kind<f16>)
        CASE(GGML_TYPE_BF16, wide_kind<bf16>)
        CASE(GGML_TYPE_Q8_0, kind_of<q8_0, row_q8_0>)
        CASE(GGML_TYPE_Q4_0, kind_of<q4_0, of_4_bits<row_with_scale<block_q4_0>>>)
        CASE(GGML_TYPE_Q4_1, kind_of<q4_1, of_4_bits<row_with_least<block_q4_1>>>)
        CASE(GGML_TYPE_Q5_0, kind_of<q5_0, of_5_bits<row_with_scale<block_q5_0>>>)
        CASE(GGML_TYPE_Q5_1, kind_of<q5_1, of_5_bits<row_with_least<block_q5_1>>>)
        CASE(GGML_TYPE_IQ4_NL, kind_of<iq4_nl, of_4_bits<row_with_scale<block_iq4_nl>>>)
        CASE(GGML_TYPE_MXFP4, kind_of<mxfp4, row_mxfp4>)
        CASE(GGML_TYPE_NVFP4, kind_of<nvfp4, row_nvfp4>)
        CASE(GGML_TYPE_Q1_0, kind_of<q1_0, row_of_bits<block_q1_0, 1>>)
        CASE(GGML_TYPE_Q2_0, kind_of<q2_0, row_of_bits<block_q2_0, 2>>)
        CASE(GGML_TYPE_TQ1_0, kind_of<tq2_0, row_tq1_0>)
        CASE(GGML_TYPE_TQ2_0, kind_of<tq2_0, row_tq2_0>)
        CASE(GGML_TYPE_Q2_K, kind_of<q2_k, row_q2_k>)
        CASE(GGML_TYPE_Q3_K, kind_of<q3_k, row_q3_k>)
        CASE(GGML_TYPE_Q4_K, kind_of<q4_k, row_q4_k>)
        CASE(GGML_TYPE_Q5_K, kind_of<q5_k, row_q5_k>)
        CASE(GGML_TYPE_Q6_K, kind_of<q6_k, row_q6_k>)
        CASE(GGML_TYPE_IQ4_XS, kind_of<iq4_xs, row_iq4_xs>)
        CASE(GGML_TYPE_IQ3_XXS, kind_of<iq3_xxs, row_iq3_xxs>)
        CASE(GGML_TYPE_IQ3_S, kind_of<iq3_s, row_iq3_s>)
        CASE(GGML_TYPE_IQ2_XXS, kind_of<iq2_xxs, row_iq2_xxs>)
        CASE(GGML_TYPE_IQ2_XS, kind_of<iq2_xs, row_iq2_xs>)
        CASE(GGML_TYPE_IQ2_S, kind_of<iq2_s, row_iq2_s>)
        CASE(GGML_TYPE_IQ1_S, kind_of<iq1_s, row_iq1_s>)
        CASE(GGML_TYPE_IQ1_M, kind_of<iq1_m, row_iq1_m>)
        default: return nullptr;
    }
#undef CASE
}

/* Rounds 32 activations to whole numbers. */
void round_block(const float * x, const kind & of, rounded * to) {
    int32_t sums[2];
    to->scale = round_32(x, to->numbers, sums);
    sums[0] += of.halves == 1 ? sums[1] : 0;
    for (int half = 0; half < 2; half++) {
        if (of.least) {
            to->least[half] = to->scale * (float) sums[half];
        } else {
            to->less[half] = -of.offset * sums[half];
        }
    }
}

/* Returns true if a tensor can be interleaved. */
bool is_known(const ggml_tensor * weights) {
    const kind * of = kind_of(weights->type);
    return of && weights->ne[0] % of->unit == 0 && weights->ne[3] == 1 && ggml_is_contiguous(weights);
}

/* Returns true if activations can be multiplied. */
bool are_columns(const ggml_tensor * activations) {
    return activations->type == GGML_TYPE_F32 && activations->nb[0] == sizeof(float);
}

int64_t groups_of(const ggml_tensor * weights) { return (weights->ne[1] + ROWS - 1) / ROWS; }

size_t size_of_group(const kind & of, const ggml_tensor * weights) { return of.step * (weights->ne[0] / of.unit); }

/* Interleaves all rows of a tensor. */
void interleave_all(const kind & of, const ggml_tensor * weights, const void * data) {
    const int64_t per = groups_of(weights), all = per * weights->ne[2];
    const size_t size = size_of_group(of, weights), row = ggml_row_size(weights->type, weights->ne[0]);
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t at; (at = next.fetch_add(1)) < all;) {
            const int64_t matrix = at / per, first = at % per * ROWS;
            of.interleave((const char *) data + (matrix * weights->ne[1] + first) * row,
                          std::min<int64_t>(ROWS, weights->ne[1] - first), row, of.blocks(weights->ne[0]),
                          (uint8_t *) weights->data + at * size);
        }
    };
    const int64_t most = (int64_t) size * all / PARALLEL, cores = std::thread::hardware_concurrency();
    std::vector<std::thread> others;
    others.reserve(16);
    for (int64_t i = 1; i < std::min<int64_t>(std::min(most, cores), 16); i++) {
        try {
            others.emplace_back(work);
        } catch (const std::system_error &) { /* no more threads */
            break;
        }
    }
    work();
    for (auto & other : others) {
        other.join();
    }
}

/* --- the operations --------------------------------------------------------------------------------------------------- */

/* Which of `chunks` parts of a matrix comes as number `turn`, so that a thread's chunks follow each other in memory as
   long as all threads are equally fast: what a kernel prefetches beyond the end of a chunk would otherwise be read into
   the cache of the wrong core. */
int64_t chunk_of_turn(int64_t turn, int64_t chunks, int64_t threads) {
    const int64_t thread = turn % threads; /* if the threads take turns */
    return thread * (chunks / threads) + std::min(thread, chunks % threads) + turn / threads;
}

/* A product of weights and activations, GGML_OP_MUL_MAT or GGML_OP_MUL_MAT_ID. Columns are counted through all
   dimensions of the activations. Weights that are not interleaved are interleaved for the pass, a group at a time. */
class product {
    /* The columns that are multiplied by the same matrix. */
    struct listed {
        const int32_t (
            *of)[2]; /* of each, the place of the expert in the list of its token, and the token; null: all */
        int64_t first, n;
    };

    const ggml_tensor *weights, *from, *to, *ids;
    const kind & of;
    const bool is_interleaved;
    const int64_t k, rows, groups, blocks, column;
    const size_t group;

    int64_t columns() const { return from->ne[1] * from->ne[2] * from->ne[3]; }
    int64_t n_ids() const { return ids->ne[0] * ids->ne[1]; }
    /* The parts of the work memory: columns; counts and lists of columns of each expert; a group of each thread. */
    size_t size_of_columns() const { return GGML_PAD(columns() * column, 64); }
    size_t size_of_lists() const { return ids ? GGML_PAD(weights->ne[2] * (8 + n_ids() * 8), 64) : 0; }
    size_t size_of_scratch() const { return is_interleaved ? 0 : GGML_PAD(group, 64); }

    const float * input(int64_t i) const {
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return (const float *) ((const char *) from->data + i1 * from->nb[1] + i2 * from->nb[2] + i3 * from->nb[3]);
    }

    float * output(int64_t i) const { /* of the same shape, but for the rows */
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return (float *) ((char *) to->data + i1 * to->nb[1] + i2 * to->nb[2] + i3 * to->nb[3]);
    }

    const char * matrix(int64_t i2, int64_t i3) const {
        return (const char *) weights->data +
               (is_interleaved ? i2 * group * groups : i2 * weights->nb[2] + i3 * weights->nb[3]);
    }

    /* Multiplies a part of the rows of a matrix by columns. */
    void multiply(const char * matrix, int64_t begin, int64_t end, const listed & list, const char * rounded_columns,
                  uint8_t * scratch) const {
        const int64_t near = of.wide ? k * (int64_t) sizeof(float) : column;
        const int64_t together = std::max<int64_t>(MOST, NEAR / near / MOST * MOST);
        for (int64_t first = 0; first < list.n; first += together) {
            const int64_t last = std::min(list.n, first + together);
            for (int64_t number = begin; number < end; number++) {
                const int64_t row = number * ROWS, n_rows = std::min<int64_t>(ROWS, rows - row);
                const uint8_t * w = (const uint8_t *) matrix + number * group;
                if (!is_interleaved) {
                    of.interleave(matrix + row * weights->nb[1], n_rows, weights->nb[1], blocks, scratch);
                    w = scratch;
                }
                for (int64_t j = first, n; j < last; j += n) {
                    const int64_t parts = (last - j + MOST - 1) / MOST;
                    n = (last - j + parts - 1) / parts;
                    const char * a[MOST];
                    float *out[MOST], c[MOST][ROWS];
                    for (int64_t i = 0; i < n; i++) {
                        int64_t at = list.first + j + i;
                        if (list.of) {
                            const int64_t i1 = list.of[at][0], i2 = list.of[at][1];
                            out[i] = (float *) ((char *) to->data + i1 * to->nb[1] + i2 * to->nb[2]);
                            at = i1 % from->ne[1] + i2 * from->ne[1];
                        } else {
                            out[i] = output(at);
                        }
                        a[i] = of.wide ? (const char *) input(at) : rounded_columns + at * column;
                    }
                    of.multiply[n - 1](w, blocks, is_interleaved && j == first, a, c);
                    for (int64_t i = 0; i < n; i++) {
                        memcpy(out[i] + row, c[i], n_rows * sizeof(float));
                    }
                }
            }
        }
    }

    /* Rounds the activations, as one of the threads. */
    void round_all(const ggml_compute_params * params, char * rounded_columns) const {
        const int64_t all = of.wide ? 0 : columns() * blocks;
        for (int64_t i = all * params->ith / params->nth; i < all * (params->ith + 1) / params->nth; i++) {
            const int64_t at = i / blocks, block = i % blocks;
            round_block(input(at) + 32 * block, of, (rounded *) (rounded_columns + at * column) + block);
        }
    }

    void compute_all(const ggml_compute_params * params, const char * rounded_columns, uint8_t * scratch) const {
        const bool is_one = weights->ne[2] == 1 && weights->ne[3] == 1; /* or else heads have matrices of their own */
        const int64_t matrices = is_one ? 1 : weights->ne[2] * from->ne[3], n = columns() / matrices;
        const int64_t chunks = std::min(groups, (8 * params->nth + matrices - 1) / matrices), all = matrices * chunks;
        for (int64_t turn = params->ith; turn < all; turn = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t number = chunk_of_turn(turn, all, params->nth), at = number / chunks, chunk = number % chunks;
            const int64_t i2 = at % weights->ne[2], i3 = at / weights->ne[2] / (from->ne[3] / weights->ne[3]);
            multiply(matrix(i2, is_one ? 0 : i3), groups * chunk / chunks, groups * (chunk + 1) / chunks,
                     {nullptr, at * n, n}, rounded_columns, scratch);
        }
    }

    /* Lists the columns of each expert, as the only thread. */
    void list_columns(int64_t * counts, int32_t (*lists)[2]) const {
        const int64_t experts = weights->ne[2];
        memset(counts, 0, experts * sizeof(*counts));
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t i = 0; i < ids->ne[0]; i++) {
                const char * at = (const char *) ids->data + token * ids->nb[1] + i * ids->nb[0];
                const int32_t expert = *(const int32_t *) at;
                GGML_ASSERT(expert >= 0 && expert < experts);
                int32_t * place = lists[expert * n_ids() + counts[expert]++];
                place[0] = (int32_t) i;
                place[1] = (int32_t) token;
            }
        }
    }

  public:
    product(const ggml_tensor * op, bool is_interleaved)
        : weights(op->src[0]), from(op->src[1]), to(op), ids(op->op == GGML_OP_MUL_MAT_ID ? op->src[2] : nullptr),
          of(*kind_of(weights->type)), is_interleaved(is_interleaved), k(weights->ne[0]), rows(weights->ne[1]),
          groups(groups_of(weights)), blocks(of.blocks(k)), column(of.size_of_column(k)),
          group(size_of_group(of, weights)) {}

    size_t work_size(int threads) const {
        return 64 + size_of_columns() + size_of_lists() + threads * size_of_scratch();
    }

    /* Computes the product, as one of the threads. */
    void compute(const ggml_compute_params * params) const {
        char * rounded_columns = (char *) GGML_PAD((uintptr_t) params->wdata, 64);
        char * experts = rounded_columns + size_of_columns();
        uint8_t * scratch = (uint8_t *) experts + size_of_lists() + params->ith * size_of_scratch();
        int64_t * counts = (int64_t *) experts;
        int32_t (*lists)[2] = (int32_t (*)[2])(counts + weights->ne[2]);
        round_all(params, rounded_columns);
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
            if (ids) {
                list_columns(counts, lists);
            }
        }
        ggml_barrier(params->threadpool);
        if (!ids) {
            compute_all(params, rounded_columns, scratch);
            return;
        }
        /* Each thread has its part of each expert: to take turns would need a barrier for each. */
        const int64_t begin = groups * params->ith / params->nth, end = groups * (params->ith + 1) / params->nth;
        for (int64_t expert = 0; expert < weights->ne[2]; expert++) {
            if (counts[expert]) {
                multiply(matrix(expert, 0), begin, end, {lists + expert * n_ids(), 0, counts[expert]}, rounded_columns,
                         scratch);
            }
        }
    }
};

/* Reads rows of the embeddings, as one of the threads. */
void read_rows(const ggml_compute_params * params, const ggml_tensor * op) {
    const ggml_tensor *weights = op->src[0], *ids = op->src[1];
    const kind & of = *kind_of(weights->type);
    const int64_t n = ggml_nelements(ids), blocks = of.blocks(weights->ne[0]);
    const size_t size = size_of_group(of, weights);
    for (int64_t i = n * params->ith / params->nth; i < n * (params->ith + 1) / params->nth; i++) {
        const int64_t i0 = i % ids->ne[0], i1 = i / ids->ne[0] % ids->ne[1], i2 = i / ids->ne[0] / ids->ne[1];
        const int32_t row =
            *(const int32_t *) ((const char *) ids->data + i0 * ids->nb[0] + i1 * ids->nb[1] + i2 * ids->nb[2]);
        GGML_ASSERT(row >= 0 && row < weights->ne[1]);
        of.read_row((const uint8_t *) weights->data + row / ROWS * size, blocks, row % ROWS,
                    (float *) ((char *) op->data + i0 * op->nb[1] + i1 * op->nb[2] + i2 * op->nb[3]));
    }
}

class traits : public ggml::cpu::tensor_traits {
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override {
        size = op->op == GGML_OP_GET_ROWS ? 0 : product(op, true).work_size(threads);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op == GGML_OP_GET_ROWS) {
            read_rows(params, op);
        } else {
            product(op, true).compute(params);
        }
        return true;
    }
};

traits all_traits;

/* --- the buffer type -------------------------------------------------------------------------------------------------- */

bool is_ours(const ggml_tensor * weights) {
    return weights->buffer && weights->buffer->buft == edgespec_interleaved_buffer_type();
}

class buffer_type : public ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor *weights = op->src[0], *activations = op->src[1];
        const bool is_trial =
            weights->buffer && ggml_backend_buffer_get_size(weights->buffer) == 0; /* before loading */
        if (is_trial && !edgespec_is_on) {
            return false;
        }
        if (op->op == GGML_OP_GET_ROWS) { /* of a model whose output is the same matrix */
            return is_ours(weights) && is_known(weights) && !strcmp(weights->name, "token_embd.weight");
        }
        const int dims = op->op == GGML_OP_MUL_MAT ? 2 : op->op == GGML_OP_MUL_MAT_ID ? 3 : 0;
        return dims && is_ours(weights) && is_known(weights) && ggml_n_dims(weights) <= dims &&
               are_columns(activations) &&
               (!activations->buffer || ggml_backend_buft_is_host(activations->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        const bool is_one = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID || op->op == GGML_OP_GET_ROWS;
        return is_one && is_ours(op->src[0]) ? &all_traits : nullptr;
    }
};

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor *) { return GGML_STATUS_SUCCESS; }

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    interleave_all(*kind_of(tensor->type), tensor, data);
}

const char * name_of(ggml_backend_buffer_type_t) { return "CPU_INTERLEAVED"; }

ggml_backend_buffer_t alloc(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = type;
        buffer->iface.init_tensor = init_tensor;
        buffer->iface.set_tensor = set_tensor;
        buffer->iface.get_tensor = nullptr;
        buffer->iface.cpy_tensor = nullptr;
    }
    return buffer;
}

size_t alignment(ggml_backend_buffer_type_t) { return 64; }

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const bool is_one = is_known(tensor);
    return is_one ? size_of_group(*kind_of(tensor->type), tensor) * groups_of(tensor) * tensor->ne[2]
                  : ggml_nbytes(tensor);
}

} // namespace
} // namespace edgespec

int32_t edgespec_is_on = 1;

static bool is_product(const struct ggml_tensor * op) {
    const struct ggml_tensor * weights = op->src[0];
    const edgespec::kind * of = edgespec::kind_of(weights->type);
    return edgespec_is_on && of && weights->ne[0] % of->unit == 0 && edgespec::are_columns(op->src[1]) &&
           weights->nb[0] == ggml_type_size(weights->type);
}

size_t edgespec_product_size(const struct ggml_tensor * op, int threads) {
    return is_product(op) ? edgespec::product(op, false).work_size(threads) : 0;
}

bool edgespec_product(const struct ggml_compute_params * params, struct ggml_tensor * op) {
    if (params->use_ref || !is_product(op)) {
        return false;
    }
    edgespec::product(op, false).compute(params);
    return true;
}

void edgespec_multiply(int type, int64_t k, int64_t rows, const void * weights, int64_t columns, const float * x,
                       float * y) {
    using namespace edgespec;
    const kind & of = *kind_of((ggml_type) type);
    const int64_t blocks = of.blocks(k), column = of.size_of_column(k);
    std::vector<uint8_t> group(of.step * (k / of.unit));
    std::vector<char> all(column * columns);
    std::vector<const char *> a(columns);
    for (int64_t j = 0; j < columns; j++) {
        rounded * to = (rounded *) (all.data() + j * column);
        for (int64_t block = 0; block < blocks && !of.wide; block++) {
            round_block(x + j * k + 32 * block, of, to + block);
        }
        a[j] = of.wide ? (const char *) (x + j * k) : (const char *) to;
    }
    const size_t size = ggml_row_size((ggml_type) type, k);
    for (int64_t row = 0; row < rows; row += ROWS) {
        const int64_t n_rows = std::min<int64_t>(ROWS, rows - row);
        of.interleave((const char *) weights + row * size, n_rows, size, blocks, group.data());
        for (int64_t j = 0, n; j < columns; j += n) {
            float c[MOST][ROWS];
            n = std::min<int64_t>(MOST, columns - j);
            of.multiply[n - 1](group.data(), blocks, false, a.data() + j, c);
            for (int64_t i = 0; i < n; i++) {
                memcpy(y + (j + i) * rows + row, c[i], n_rows * sizeof(float));
            }
        }
    }
}

ggml_backend_buffer_type_t edgespec_interleaved_buffer_type(void) {
    static struct ggml_backend_buffer_type type = {
        /* .iface   = */ {edgespec::name_of, edgespec::alloc, edgespec::alignment, nullptr, edgespec::alloc_size,
                          nullptr},
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ new edgespec::buffer_type(),
    };
    return &type;
}

#else

int32_t edgespec_is_on = 0;

size_t edgespec_product_size(const struct ggml_tensor *, int) { return 0; }

bool edgespec_product(const struct ggml_compute_params *, struct ggml_tensor *) { return false; }

ggml_backend_buffer_type_t edgespec_interleaved_buffer_type(void) { return nullptr; }

#endif
