#define GGML_COMMON_IMPL_C /* the tables of types whose elements are looked up */
#include "ggml-common.h"

#include "kernels.h"

#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "quants.h"
#include "simd-mappings.h"
#include "vec.h"

#include <limits.h>

const int32_t edgespec_version = EDGESPEC_VERSION;
int32_t edgespec_kernel_bounds[EDGESPEC_BOUNDS] = {2, 2, 8, 512, 0};

/* Returns true for types with blocks of 32 elements. */
static inline bool is_of_32(int type) {
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_0 ||
           type == GGML_TYPE_Q5_1 || type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

/* Returns true for types with blocks of 256 elements. */
static inline bool is_of_256(int type) {
    return type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q3_K || type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K ||
           type == GGML_TYPE_Q6_K || type == GGML_TYPE_IQ4_XS;
}

/* The kernels of this processor. MSVC is left out on ARM: the code there uses operators on vectors, which it lacks. */
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__) && defined(__FMA__))
#define OWN_KERNELS "kernels_x86.h"
#elif defined(__aarch64__) && defined(__ARM_NEON) && defined(__GNUC__)
#define OWN_KERNELS "kernels_arm.h"
#endif

#define STRIP 262144 /* bytes of weights that stay in the L2 cache while all columns pass */

#ifdef OWN_KERNELS

#define BROAD 4          /* columns of B at once */
#define MOST_BLOCKS 1024 /* in a row; longer ones would take too much of a thread's stack */

#ifdef _MSC_VER
#define INLINE static __forceinline
#define THREAD_LOCAL __declspec(thread)
#else
#define INLINE static inline __attribute__((always_inline))
#define THREAD_LOCAL _Thread_local
#endif

/* Returns how many of the columns that are left come next: at most `most`, and about as many each time. */
INLINE int64_t part(int64_t left, int most) {
    const int64_t parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
}

/* True for types whose blocks have a least value and unsigned elements. Their activations are Q8_1. */
INLINE bool has_least(int type) {
    return type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_1;
}

INLINE size_t size_of_block(int type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return sizeof(block_q4_0);
        case GGML_TYPE_Q4_1:   return sizeof(block_q4_1);
        case GGML_TYPE_Q5_0:   return sizeof(block_q5_0);
        case GGML_TYPE_Q5_1:   return sizeof(block_q5_1);
        case GGML_TYPE_IQ4_NL: return sizeof(block_iq4_nl);
        case GGML_TYPE_MXFP4:  return sizeof(block_mxfp4);
        default:               return sizeof(block_q8_0);
    }
}

INLINE size_t size_of_256(int type) {
    switch (type) {
        case GGML_TYPE_Q2_K: return sizeof(block_q2_K);
        case GGML_TYPE_Q3_K: return sizeof(block_q3_K);
        case GGML_TYPE_Q4_K: return sizeof(block_q4_K);
        case GGML_TYPE_Q5_K: return sizeof(block_q5_K);
        case GGML_TYPE_Q6_K: return sizeof(block_q6_K);
        default:             return sizeof(block_iq4_xs);
    }
}

INLINE float scale_of(int type, const char * block) {
    if (type == GGML_TYPE_MXFP4) {
        return GGML_CPU_E8M0_TO_FP32_HALF(((const block_mxfp4 *) block)->e);
    }
    return GGML_CPU_FP16_TO_FP32(*(const ggml_half *) block); /* the first member of all others */
}

/* The least value of a block that has one. */
INLINE float least_of(const char * block) {
    return GGML_CPU_FP16_TO_FP32(((const ggml_half *) block)[1]);
}

/* The scales of Q4_K and Q5_K and their least values, eight each, of six bits. */
INLINE void unpack_scales(const uint8_t * scales, uint32_t bytes[4]) {
    uint32_t packed[3];
    memcpy(packed, scales, sizeof(packed));
    bytes[0] = packed[0] & 0x3f3f3f3f;
    bytes[1] = (packed[2] & 0x0f0f0f0f) | ((packed[0] >> 6 & 0x03030303) << 4);
    bytes[2] = packed[1] & 0x3f3f3f3f;
    bytes[3] = (packed[2] >> 4 & 0x0f0f0f0f) | ((packed[1] >> 6 & 0x03030303) << 4);
}

/* Columns of activations: their bytes, and the scales and sums of their blocks as floats, which all rows need. */
typedef struct {
    const char * bytes[BROAD];
    size_t size; /* from one block to the next */
    float scales[MOST_BLOCKS][BROAD];
    float sums[MOST_BLOCKS][BROAD];
} columns_of_32;

INLINE void convert(int type, columns_of_32 * b, int broad, int blocks, const char * const * columns) {
    b->size = has_least(type) ? sizeof(block_q8_1) : sizeof(block_q8_0);
    if (broad < BROAD) { /* Unused columns are computed too. Leftover bytes could be denormal numbers, which are slow. */
        memset(b->scales, 0, blocks * sizeof(b->scales[0]));
        if (has_least(type)) {
            memset(b->sums, 0, blocks * sizeof(b->sums[0]));
        }
    }
    for (int j = 0; j < broad; j++) {
        const char * column = columns[j];
        b->bytes[j] = column + (has_least(type) ? offsetof(block_q8_1, qs) : offsetof(block_q8_0, qs));
        for (int block = 0; block < blocks; block++) {
            const ggml_half * halves = (const ggml_half *) (column + block * b->size);
            b->scales[block][j] = GGML_CPU_FP16_TO_FP32(halves[0]);
            if (has_least(type)) {
                b->sums[block][j] = GGML_CPU_FP16_TO_FP32(halves[1]);
            }
        }
    }
}

#include OWN_KERNELS
/* It defines

       TALL, the rows of A that a tile has;
       tile_of_f16, tile_of_32 and row_of_256: products of one or several rows with several columns, of F16, of blocks of
           32, and of blocks of 256 elements;
       columns_of_256, MOST_OF_256 and convert_of_256: how row_of_256 takes its columns;
       sums_pairs and follows_ggml, for what is left to ggml;
       is_fast_alone, for single columns that ggml computes at least as fast. */

/* The number of rows and of columns as constants, so that the sums stay in registers. */
#define FOR_EACH_SIZE(call)                                                                                            \
    switch (4 * (tall > 1) + broad) {                                                                                  \
        case 1: call(1, 1); break;                                                                                     \
        case 2: call(1, 2); break;                                                                                     \
        case 3: call(1, 3); break;                                                                                     \
        case 4: call(1, 4); break;                                                                                     \
        case 5: call(TALL, 1); break;                                                                                  \
        case 6: call(TALL, 2); break;                                                                                  \
        case 7: call(TALL, 3); break;                                                                                  \
        case 8: call(TALL, 4); break;                                                                                  \
    }

static void rows_of_f16(int k, const char * a, size_t nb_a, int64_t rows, const char * const * b, int64_t columns,
                        float * const * c) {
#define CALL(tall, broad) tile_of_f16(tall, broad, k, a + row * nb_a, nb_a, b + column, c + column, row)
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, BROAD);
        for (int64_t row = 0, tall; row < rows; row += tall) {
            tall = row + TALL <= rows ? TALL : 1;
            FOR_EACH_SIZE(CALL)
        }
    }
#undef CALL
}

INLINE void rows_of_32(int type, int blocks, const char * a, size_t nb_a, int64_t rows, const char * const * b,
                       int64_t columns, float * const * c) {
#define CALL(tall, broad) tile_of_32(type, tall, broad, blocks, a + row * nb_a, nb_a, &bs, c + column, row)
    columns_of_32 bs;
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, BROAD);
        convert(type, &bs, (int) broad, blocks, b + column);
        for (int64_t row = 0, tall; row < rows; row += tall) {
            tall = row + TALL <= rows ? TALL : 1;
            FOR_EACH_SIZE(CALL)
        }
    }
#undef CALL
}

INLINE void rows_of_256(int type, int blocks, const char * a, size_t nb_a, int64_t rows, const char * const * b,
                        int64_t columns, float * const * c) {
#define CASE(broad)                                                                                                    \
    case broad:                                                                                                        \
        for (int64_t row = 0; row < rows; row++) {                                                                     \
            row_of_256(type, broad, blocks, a + row * nb_a, &bs, c + column, row);                                     \
        }                                                                                                              \
        break
    static THREAD_LOCAL columns_of_256 bs; /* On the stack, it would be too large for some threads. */
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, MIN(BROAD, MOST_OF_256 / blocks));
        convert_of_256(type, &bs, (int) broad, blocks, b + column);
        switch (broad) {
            CASE(1);
            CASE(2);
            CASE(3);
            CASE(4);
        }
    }
#undef CASE
}

/* Code for each type, so that the compiler leaves out what a type does not need. */
#define OF_32(type)                                                                                                    \
    case type: rows_of_32(type, (int) (k / 32), A, nb_a, rows, B, columns, C); return true
#define OF_256(type)                                                                                                   \
    case type: rows_of_256(type, (int) (k / QK_K), A, nb_a, rows, B, columns, C); return true

#endif

/* Returns true if edgespec_chunk multiplies rows of k weights of this type. */
static bool is_own(int type, int64_t k) {
#ifdef OWN_KERNELS
    return edgespec_kernel_bounds[EDGESPEC_OWN] && (type == GGML_TYPE_F16 || is_of_32(type) || is_of_256(type)) &&
           !(is_of_32(type) && k > 32 * MOST_BLOCKS) && !(is_of_256(type) && k / QK_K > MOST_OF_256) &&
           !(sums_pairs(type) && k % 64) && follows_ggml(type);
#else
    (void) type, (void) k;
    return false;
#endif
}

bool edgespec_is_narrow(int type, int64_t k, int64_t rows) {
    const bool is_quantised = ggml_is_quantized((enum ggml_type) type);
    return (is_quantised && rows < EDGESPEC_WIDE && is_own(type, k)) ||
           rows < edgespec_kernel_bounds[is_quantised ? EDGESPEC_SGEMM_QUANT : EDGESPEC_SGEMM_FLOAT];
}

void edgespec_share_out(const struct ggml_tensor * src0, const struct ggml_tensor * src1, int threads,
                        int64_t * row_chunks, int64_t * column_chunks) {
    const int64_t rows = src0->ne[1], size = (int64_t) src0->nb[1];
    if (!is_own(src0->type, src0->ne[0]) || src1->ne[1] >= EDGESPEC_WIDE || ggml_is_numa()) {
        return;
    }
    const int64_t most = MIN(64, MAX(16, STRIP / size)); /* rows of a chunk */
    *row_chunks = MAX((rows + most - 1) / most, MIN((rows + 15) / 16, 4 * threads));
    *column_chunks = 1;
    if (*row_chunks < 4 * threads) { /* a chunk for each matrix: heads that share their keys stay together */
        *column_chunks = src0->ne[2] * src1->ne[3];
    }
    if (*row_chunks * *column_chunks < threads) {
        *row_chunks = MIN(rows, threads);
    }
}

int64_t edgespec_chunk_of_turn(int64_t turn, int64_t chunks, int64_t threads) {
    const int64_t thread = turn % threads; /* if the threads take turns */
    return thread * (chunks / threads) + MIN(thread, chunks % threads) + turn / threads;
}

bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows, const char * const * B,
                    int64_t columns, float * const * C) {
#ifdef OWN_KERNELS
    if (!is_own(type, k)) {
        return false;
    }
    switch (type) {
        case GGML_TYPE_F16: rows_of_f16((int) k, A, nb_a, rows, B, columns, C); return true;
        OF_32(GGML_TYPE_Q8_0);
        OF_32(GGML_TYPE_Q4_0);
        OF_32(GGML_TYPE_Q4_1);
        OF_32(GGML_TYPE_Q5_0);
        OF_32(GGML_TYPE_Q5_1);
        OF_32(GGML_TYPE_IQ4_NL);
        OF_32(GGML_TYPE_MXFP4);
        OF_256(GGML_TYPE_Q2_K);
        OF_256(GGML_TYPE_Q3_K);
        OF_256(GGML_TYPE_Q4_K);
        OF_256(GGML_TYPE_Q5_K);
        OF_256(GGML_TYPE_Q6_K);
        OF_256(GGML_TYPE_IQ4_XS);
        default: break;
    }
#else
    (void) k, (void) A, (void) nb_a, (void) rows, (void) B, (void) columns, (void) C;
#endif
    return false;
}

/* Returns true if edgespec_chunk is faster than ggml for so many columns of the same matrix. */
static bool is_chosen(int type, int64_t k, int64_t columns) {
#ifdef OWN_KERNELS
    return is_own(type, k) && (columns > 1 || !is_fast_alone(type, k));
#else
    (void) type, (void) k, (void) columns;
    return false;
#endif
}

#define MOST_COLUMNS 64 /* in a call of edgespec_chunk */

/* Sets where the columns of B are: in src1, or in `packed`, where ggml converts them if their type is another one.
   Returns their distance in bytes, or 0 if the strides of src1 apply. */
static size_t locate_columns(const struct ggml_tensor * src0, const struct ggml_tensor * src1, const void * packed,
                             const char ** columns) {
    const enum ggml_type type = ggml_get_type_traits_cpu(src0->type)->vec_dot_type;
    *columns = src1->type == type ? src1->data : packed;
    return src1->type == type && !ggml_is_contiguous(src1) ? 0 : ggml_row_size(type, src1->ne[0]);
}

bool edgespec_mul_mat(const struct ggml_compute_params * params, struct ggml_tensor * dst, int64_t row, int64_t row_end,
                      int64_t column, int64_t column_end) {
    const struct ggml_tensor * src0 = dst->src[0], * src1 = dst->src[1];
    GGML_TENSOR_BINARY_OP_LOCALS
    const int64_t together = ne12 / ne02 * ne11; /* columns that are multiplied by the same matrix: heads share keys */
    const char * columns;
    const size_t size = locate_columns(src0, src1, params->wdata, &columns);
    if (!is_chosen(src0->type, ne00, MIN(together, column_end - column))) {
        return false;
    }
    for (int64_t n; column < column_end; column += n) {
        const int64_t matrix = column / together;
        const char * a = (const char *) src0->data + matrix % ne02 * nb02 + matrix / ne02 * ne03 / ne13 * nb03;
        const char * b[MOST_COLUMNS];
        float * c[MOST_COLUMNS];
        n = MIN(MIN((matrix + 1) * together, column_end) - column, MOST_COLUMNS);
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = column + j, i1 = at % ne11, i2 = at / ne11 % ne12, i3 = at / ne11 / ne12;
            b[j] = columns + (size ? at * size : i1 * nb11 + i2 * nb12 + i3 * nb13);
            c[j] = (float *) ((char *) dst->data + i1 * nb1 + i2 * nb2 + i3 * nb3) + row;
        }
        if (!edgespec_chunk(src0->type, ne00, a + row * nb01, nb01, row_end - row, b, n, c)) {
            return false;
        }
    }
    return true;
}

bool edgespec_mul_mat_id(struct ggml_tensor * dst, const void * matrix, const int32_t (*places)[2], const void * packed,
                         int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
    const struct ggml_tensor * src0 = dst->src[0], * src1 = dst->src[1];
    GGML_TENSOR_BINARY_OP_LOCALS
    const char * columns;
    const size_t size = locate_columns(src0, src1, packed, &columns);
    if (!is_chosen(src0->type, ne00, column_end - column)) {
        return false;
    }
    for (int64_t n; column < column_end; column += n) {
        const char * b[MOST_COLUMNS];
        float * c[MOST_COLUMNS];
        n = MIN(column_end - column, MOST_COLUMNS);
        for (int64_t j = 0; j < n; j++) {
            const int64_t i1 = places[column + j][0], i2 = places[column + j][1];
            b[j] = columns + (size ? (i1 % ne11 + i2 * ne11) * size : i1 % ne11 * nb11 + i2 * nb12);
            c[j] = (float *) ((char *) dst->data + i1 * nb1 + i2 * nb2) + row;
        }
        if (!edgespec_chunk(src0->type, ne00, (const char *) matrix + row * nb01, nb01, row_end - row, b, n, c)) {
            return false;
        }
    }
    return true;
}

enum { STRIP_CELLS = 32 }; /* a cache line of F16 */

bool edgespec_transpose(const struct ggml_compute_params * params, struct ggml_tensor * dst) {
    const struct ggml_tensor * src0 = dst->src[0];
    GGML_TENSOR_UNARY_OP_LOCALS
    const size_t size = sizeof(ggml_fp16_t);
    if (src0->type != GGML_TYPE_F16 || dst->type != GGML_TYPE_F16 || nb00 == size || nb01 != size ||
        !ggml_is_contiguous(dst) || !ggml_are_same_shape(src0, dst)) {
        return false;
    }
    const int64_t strips = (ne01 + STRIP_CELLS - 1) / STRIP_CELLS, all = strips * ne02 * ne03;
    const int64_t end = all * (params->ith + 1) / params->nth;
    for (int64_t strip = all * params->ith / params->nth; strip < end; strip++) {
        const int64_t i1 = strip % strips * STRIP_CELLS, i2 = strip / strips % ne02, i3 = strip / strips / ne02;
        const int64_t n = MIN(STRIP_CELLS, ne01 - i1);
        const char * from = (const char *) src0->data + i1 * nb01 + i2 * nb02 + i3 * nb03;
        ggml_fp16_t * to = (ggml_fp16_t *) ((char *) dst->data + i1 * nb1 + i2 * nb2 + i3 * nb3);
        for (int64_t i0 = 0; i0 < ne00; i0++) {
            for (int64_t j = 0; j < n; j++) {
                to[j * ne00 + i0] = ((const ggml_fp16_t *) (from + i0 * nb00))[j];
            }
        }
    }
    return true;
}
