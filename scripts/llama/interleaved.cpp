/* A buffer type of the CPU backend whose weights are interleaved, and the products with them (interleaved.h). */
#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "traits.h"

#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#define GGML_COMMON_IMPL_CPP
#include "interleaved.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace edgespec {
namespace {

constexpr int MOST = 8;               /* columns at once */
constexpr int64_t NEAR = 512 << 10;   /* bytes of activations that stay in the L2 cache */
constexpr int64_t PARALLEL = 1 << 20; /* bytes from which several threads interleave a tensor */

/* --- interleaving --------------------------------------------------------------------------------------------------- */

/* 32 elements of a row, in the order of the row. */
struct elements {
    uint8_t of[32];
};

void nibbles(const uint8_t * qs, elements & to) {
    for (int j = 0; j < 16; j++) {
        to.of[j] = qs[j] & 15;
        to.of[j + 16] = qs[j] >> 4;
    }
}

void fifth_bits(const uint8_t * qh, elements & to) {
    uint32_t bits;
    memcpy(&bits, qh, sizeof(bits));
    for (int j = 0; j < 32; j++) {
        to.of[j] |= (bits >> j & 1) << 4;
    }
}

/* The scales of Q4_K and Q5_K and their least values, eight each, of six bits. */
void scales_of_6_bits(const uint8_t * packed, uint8_t * scale, uint8_t * least, int block) {
    if (block < 4) {
        *scale = packed[block] & 63;
        *least = packed[block + 4] & 63;
    } else {
        *scale = (packed[block + 4] & 15) | (packed[block - 4] >> 6) << 4;
        *least = packed[block + 4] >> 4 | (packed[block] >> 6) << 4;
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

struct row_q4_k : row_k<block_q4_K> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements & e) {
        uint8_t * at = to + 4 * ROWS + 2 * ROWS * block + lane;
        scales_of_6_bits(x.scales, at, at + ROWS, block);
        for (int j = 0; j < 32; j++) {
            e.of[j] = x.qs[32 * (block / 2) + j] >> 4 * (block % 2) & 15;
        }
    }
};

struct row_q5_k : row_k<block_q5_K> {
    static void block(const source & x, int block, uint8_t * to, int lane, elements & e) {
        uint8_t * at = to + 4 * ROWS + 2 * ROWS * block + lane;
        scales_of_6_bits(x.scales, at, at + ROWS, block);
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

/* Packs the elements of a row into the vectors of its group: four elements at a time, which are the four bytes of its
   lane. */
template <int BITS> void pack(const elements & e, uint8_t * to, int lane) {
    uint32_t four[8], packed[8] = {};
    memcpy(four, e.of, sizeof(four));
    enum { LOW = BITS == 8 ? 8 : BITS >= 4 ? 4 : 2, VECTORS = LOW, PLANES = BITS == 6 ? 2 : BITS % 2 };
    for (int i = 0; i < 8; i++) {
        if (LOW == 8) {
            packed[i] = four[i];
        } else if (LOW == 4) {
            packed[i % 4] |= (four[i] & 0x0f0f0f0f) << 4 * (i / 4);
        } else {
            packed[i / 4] |= (four[i] & 0x03030303) << 2 * (i % 4);
        }
        if (PLANES == 1) {
            packed[VECTORS] |= (four[i] >> LOW & 0x01010101) << i;
        } else if (PLANES == 2) {
            packed[VECTORS + i / 4] |= (four[i] >> LOW & 0x03030303) << 2 * (i % 4);
        }
    }
    for (int i = 0; i < VECTORS + PLANES; i++) {
        memcpy(to + 4 * ROWS * i + 4 * lane, packed + i, sizeof(*packed));
    }
}

template <class T, class R> void interleave(const void * rows, int64_t n, size_t size, int64_t blocks, uint8_t * to) {
    const size_t step = T::HEAD + T::BLOCKS * T::STEP;
    memset(to, 0, step * (blocks / T::BLOCKS));
    for (int lane = 0; lane < n; lane++) {
        const typename R::source * x = (const typename R::source *) ((const char *) rows + lane * size);
        for (int64_t at = 0; at < blocks / T::BLOCKS; at++) {
            uint8_t * group = to + at * step;
            R::head(x[at], group, lane);
            for (int block = 0; block < T::BLOCKS; block++) {
                elements e;
                R::block(x[at], block, group, lane, e);
                pack<T::BITS>(e, group + T::HEAD + block * T::STEP, lane);
            }
        }
    }
}

void interleave_wide(const void * rows, int64_t n, size_t size, int64_t k, uint8_t * to) {
    memset(to, 0, 2 * ROWS * k);
    for (int lane = 0; lane < n; lane++) {
        const uint16_t * x = (const uint16_t *) ((const char *) rows + lane * size);
        for (int64_t i = 0; i < k; i++) {
            memcpy(to + 2 * (i * ROWS + lane), x + i, 2);
        }
    }
}

/* --- kinds ---------------------------------------------------------------------------------------------------------- */

typedef void multiplying(const uint8_t * w, int64_t blocks, bool is_new, const char * const * columns,
                         float (*c)[ROWS]);

/* What is known of a type, and its functions. `wide` types are F16 and BF16, whose activations stay floats. Blocks have
   32 elements, or one of a wide type. */
struct kind {
    int64_t unit; /* elements of a block of ggml */
    size_t step; /* bytes of a group for these elements */
    int halves, offset;
    bool least, wide;

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
            false,
            interleave<T, R>,
            read_row<T>,
            {multiply<T, 1>, multiply<T, 2>, multiply<T, 3>, multiply<T, 4>, multiply<T, 5>, multiply<T, 6>,
             multiply<T, 7>, multiply<T, 8>}};
}

template <bool BRAIN> constexpr kind wide_kind() {
    return {32,
            64 * ROWS,
            1,
            0,
            false,
            true,
            interleave_wide,
            read_wide_row<BRAIN>,
            {multiply_wide<BRAIN, 1>, multiply_wide<BRAIN, 2>, multiply_wide<BRAIN, 3>, multiply_wide<BRAIN, 4>,
             multiply_wide<BRAIN, 5>, multiply_wide<BRAIN, 6>, multiply_wide<BRAIN, 7>, multiply_wide<BRAIN, 8>}};
}

const kind * kind_of(ggml_type type) {
#define CASE(type, ...)                                                                                                \
    case type: {                                                                                                       \
        static constexpr kind k = __VA_ARGS__();                                                                       \
        return &k;                                                                                                     \
    }
    switch (type) {
        CASE(GGML_TYPE_F16, wide_kind<false>)
        CASE(GGML_TYPE_BF16, wide_kind<true>)
        CASE(GGML_TYPE_Q8_0, kind_of<q8_0, row_q8_0>)
        CASE(GGML_TYPE_Q4_0, kind_of<q4_0, of_4_bits<row_with_scale<block_q4_0>>>)
        CASE(GGML_TYPE_Q4_1, kind_of<q4_1, of_4_bits<row_with_least<block_q4_1>>>)
        CASE(GGML_TYPE_Q5_0, kind_of<q5_0, of_5_bits<row_with_scale<block_q5_0>>>)
        CASE(GGML_TYPE_Q5_1, kind_of<q5_1, of_5_bits<row_with_least<block_q5_1>>>)
        CASE(GGML_TYPE_IQ4_NL, kind_of<iq4_nl, of_4_bits<row_with_scale<block_iq4_nl>>>)
        CASE(GGML_TYPE_MXFP4, kind_of<mxfp4, row_mxfp4>)
        CASE(GGML_TYPE_Q2_K, kind_of<q2_k, row_q2_k>)
        CASE(GGML_TYPE_Q3_K, kind_of<q3_k, row_q3_k>)
        CASE(GGML_TYPE_Q4_K, kind_of<q4_k, row_q4_k>)
        CASE(GGML_TYPE_Q5_K, kind_of<q5_k, row_q5_k>)
        CASE(GGML_TYPE_Q6_K, kind_of<q6_k, row_q6_k>)
        CASE(GGML_TYPE_IQ4_XS, kind_of<iq4_xs, row_iq4_xs>)
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

const kind * kind_of(const ggml_tensor * weights) {
    const kind * of = kind_of(weights->type);
    const int64_t unit = of && of->wide ? 2 : of ? of->unit : 1;
    return of && weights->ne[0] % unit == 0 && weights->ne[3] == 1 && ggml_is_contiguous(weights) ? of : nullptr;
}

int64_t groups_of(const ggml_tensor * weights) { return (weights->ne[1] + ROWS - 1) / ROWS; }

size_t size_of_group(const kind & of, const ggml_tensor * weights) {
    return of.wide ? 2 * ROWS * weights->ne[0] : of.step * (weights->ne[0] / of.unit);
}

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

/* Where the columns of an operation are: `from` of them in src1, `to` of them in dst. */
struct places {
    const ggml_tensor *from, *to;
    int64_t n() const { return from->ne[1] * from->ne[2] * from->ne[3]; }
    const float * input(int64_t i) const {
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return (const float *) ((const char *) from->data + i1 * from->nb[1] + i2 * from->nb[2] + i3 * from->nb[3]);
    }
    float * output(int64_t i) const { /* of the same shape, but for the rows */
        const int64_t i1 = i % from->ne[1], i2 = i / from->ne[1] % from->ne[2], i3 = i / from->ne[1] / from->ne[2];
        return (float *) ((char *) to->data + i1 * to->nb[1] + i2 * to->nb[2] + i3 * to->nb[3]);
    }
};

/* The columns that are multiplied by the same matrix. */
struct listed {
    const int32_t (*of)[2]; /* of each, the place of the expert in the list of its token, and the token; null: all */
    int64_t n;
};

class traits : public ggml::cpu::tensor_traits {
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        if (op->op == GGML_OP_GET_ROWS) {
            size = 0;
            return true;
        }
        const ggml_tensor *weights = op->src[0], *activations = op->src[1];
        const int64_t n = activations->ne[1] * activations->ne[2] * activations->ne[3];
        size = 64 + n * kind_of(weights)->size_of_column(weights->ne[0]);
        if (op->op == GGML_OP_MUL_MAT_ID) {
            const int64_t n_ids = op->src[2]->ne[0] * op->src[2]->ne[1];
            size += 8 * (weights->ne[2] + 1) + weights->ne[2] * n_ids * 8;
        }
        return true;
    }

    /* Multiplies a matrix by columns, as one of the threads. */
    static void products(const ggml_compute_params * params, const ggml_tensor * weights, const uint8_t * matrix,
                         const places & at, const listed & list, const char * columns, bool is_shared) {
        const kind & of = *kind_of(weights);
        const int64_t groups = groups_of(weights), rows = weights->ne[1], k = weights->ne[0], blocks = of.blocks(k);
        const size_t size = size_of_group(of, weights);
        const int64_t chunks = std::min<int64_t>(groups, 8 * params->nth), column = of.size_of_column(k);
        const int64_t near = of.wide ? k * (int64_t) sizeof(float) : column;
        const int64_t together = std::max<int64_t>(MOST, NEAR / near / MOST * MOST);
        const auto chunk = [&](int64_t number) {
            const int64_t begin = groups * number / chunks, end = groups * (number + 1) / chunks;
            for (int64_t first = 0; first < list.n; first += together) {
                const int64_t last = std::min(list.n, first + together);
                for (int64_t group = begin; group < end; group++) {
                    const int64_t row = group * ROWS, n_rows = std::min<int64_t>(ROWS, rows - row);
                    for (int64_t j = first, n; j < last; j += n) {
                        const int64_t parts = (last - j + MOST - 1) / MOST;
                        n = (last - j + parts - 1) / parts;
                        const char * a[MOST];
                        float *to[MOST], c[MOST][ROWS];
                        for (int64_t i = 0; i < n; i++) {
                            int64_t from = j + i;
                            if (list.of) {
                                const int64_t i1 = list.of[from][0], i2 = list.of[from][1];
                                to[i] = (float *) ((char *) at.to->data + i1 * at.to->nb[1] + i2 * at.to->nb[2]);
                                from = i1 % at.from->ne[1] + i2 * at.from->ne[1];
                            } else {
                                to[i] = at.output(from);
                            }
                            a[i] = of.wide ? (const char *) at.input(from) : columns + from * column;
                        }
                        of.multiply[n - 1](matrix + group * size, blocks, j == first, a, c);
                        for (int64_t i = 0; i < n; i++) {
                            memcpy(to[i] + row, c[i], n_rows * sizeof(float));
                        }
                    }
                }
            }
        };
        if (!is_shared) { /* each thread has its part: counting the chunks of each expert would need barriers */
            for (int64_t number = params->ith * chunks / params->nth; number < (params->ith + 1) * chunks / params->nth;
                 number++) {
                chunk(number);
            }
            return;
        }
        for (int64_t number = params->ith; number < chunks; number = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            chunk(edgespec_chunk_of_turn(number, chunks, params->nth));
        }
    }

    /* Rounds the activations, as one of the threads. */
    static void round_all(const ggml_compute_params * params, const kind & of, const places & at, char * columns) {
        const int64_t k = at.from->ne[0], blocks = of.blocks(k), all = of.wide ? 0 : at.n() * blocks;
        for (int64_t i = all * params->ith / params->nth; i < all * (params->ith + 1) / params->nth; i++) {
            const int64_t column = i / blocks, block = i % blocks;
            rounded * to = (rounded *) (columns + column * of.size_of_column(k));
            round_block(at.input(column) + 32 * block, of, to + block);
        }
    }

    /* Reads rows of the embeddings, as one of the threads. */
    static void rows(const ggml_compute_params * params, const ggml_tensor * op) {
        const ggml_tensor *weights = op->src[0], *ids = op->src[1];
        const kind & of = *kind_of(weights);
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

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op == GGML_OP_GET_ROWS) {
            rows(params, op);
            return true;
        }
        const ggml_tensor * weights = op->src[0];
        const places at = {op->src[1], op};
        const kind & of = *kind_of(weights);
        char * columns = (char *) GGML_PAD((uintptr_t) params->wdata, 64);
        round_all(params, of, at, columns);
        if (op->op == GGML_OP_MUL_MAT) {
            if (params->ith == 0) {
                ggml_threadpool_chunk_set(params->threadpool, params->nth);
            }
            ggml_barrier(params->threadpool);
            products(params, weights, (const uint8_t *) weights->data, at, {nullptr, at.n()}, columns, true);
            return true;
        }
        const ggml_tensor * ids = op->src[2];
        const int64_t n_experts = weights->ne[2], n_ids = ids->ne[0] * ids->ne[1];
        int64_t * counts = (int64_t *) GGML_PAD((uintptr_t) (columns + at.n() * of.size_of_column(weights->ne[0])), 8);
        int32_t (*lists)[2] = (int32_t (*)[2])(counts + n_experts);
        if (params->ith == 0) {
            memset(counts, 0, n_experts * sizeof(*counts));
            for (int64_t token = 0; token < ids->ne[1]; token++) {
                for (int64_t i = 0; i < ids->ne[0]; i++) {
                    const int32_t expert =
                        *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + i * ids->nb[0]);
                    GGML_ASSERT(expert >= 0 && expert < n_experts);
                    int32_t * place = lists[expert * n_ids + counts[expert]++];
                    place[0] = (int32_t) i;
                    place[1] = (int32_t) token;
                }
            }
        }
        ggml_barrier(params->threadpool);
        const size_t size = size_of_group(of, weights) * groups_of(weights);
        for (int64_t expert = 0; expert < n_experts; expert++) {
            if (counts[expert]) {
                const listed list = {lists + expert * n_ids, counts[expert]};
                products(params, weights, (const uint8_t *) weights->data + expert * size, at, list, columns, false);
            }
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
        if (is_trial && !edgespec_interleaves) {
            return false;
        }
        if (op->op == GGML_OP_GET_ROWS) { /* of a model whose output is the same matrix */
            return is_ours(weights) && kind_of(weights) && !strcmp(weights->name, "token_embd.weight");
        }
        const int dims = op->op == GGML_OP_MUL_MAT ? 2 : op->op == GGML_OP_MUL_MAT_ID ? 3 : 0;
        return dims && is_ours(weights) && kind_of(weights) && ggml_n_dims(weights) <= dims &&
               activations->type == GGML_TYPE_F32 && activations->nb[0] == sizeof(float) &&
               (!activations->buffer || ggml_backend_buft_is_host(activations->buffer->buft));
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        const bool is_known = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID || op->op == GGML_OP_GET_ROWS;
        return is_known && is_ours(op->src[0]) ? &all_traits : nullptr;
    }
};

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor *) { return GGML_STATUS_SUCCESS; }

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    interleave_all(*kind_of(tensor), tensor, data);
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
    const kind * of = kind_of(tensor);
    return of ? size_of_group(*of, tensor) * groups_of(tensor) * tensor->ne[2] : ggml_nbytes(tensor);
}

} // namespace
} // namespace edgespec

int32_t edgespec_interleaves = 1;

void edgespec_multiply(int type, int64_t k, int64_t rows, const void * weights, int64_t columns, const float * x,
                       float * y) {
    using namespace edgespec;
    const kind & of = *kind_of((ggml_type) type);
    const int64_t blocks = of.blocks(k), column = of.size_of_column(k);
    std::vector<uint8_t> group(of.wide ? 2 * ROWS * k : of.step * (k / of.unit));
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

int32_t edgespec_interleaves = 0;

ggml_backend_buffer_type_t edgespec_interleaved_buffer_type(void) { return nullptr; }

#endif
