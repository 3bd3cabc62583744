#define GGML_COMMON_IMPL_C /* the tables of types whose elements are looked up */
#include "ggml-common.h"

#include "kernels.h"

#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "quants.h"
#include "simd-mappings.h"
#include "vec.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sched.h>
#endif

const int32_t edgespec_version = EDGESPEC_VERSION;
int32_t edgespec_kernel_bounds[EDGESPEC_BOUNDS] = {2, 2, 8, 512, 0};

void edgespec_yield(void) {
#ifdef _WIN32
    SwitchToThread();
#else
    sched_yield();
#endif
}

/* Types whose blocks have 32 elements, */
static inline bool is_of_32(int type) {
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_0 ||
           type == GGML_TYPE_Q5_1 || type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

/* and 256. */
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

/* True for types that edgespec_chunk takes. */
static bool is_own(int type) {
#ifdef OWN_KERNELS
    return edgespec_kernel_bounds[EDGESPEC_OWN] && (is_of_32(type) || is_of_256(type));
#else
    (void) type;
    return false;
#endif
}

bool edgespec_is_narrow(int type, int64_t rows, int64_t matrices) {
    const bool is_quantised = ggml_is_quantized((enum ggml_type) type);
    return (matrices == 1 && rows < EDGESPEC_WIDE && is_own(type)) ||
           rows < edgespec_kernel_bounds[is_quantised ? EDGESPEC_SGEMM_QUANT : EDGESPEC_SGEMM_FLOAT];
}

#ifdef OWN_KERNELS

#define BROAD 4          /* columns of B at once */
#define MOST_BLOCKS 1024 /* in a row; longer ones would take too much of a thread's stack */
#define LONGEST 4096     /* elements of a row of F16; the same */
#define STRIP 32         /* rows of A in F16 that stay in the second level of the cache while all columns pass */

#ifdef _MSC_VER
#define INLINE static __forceinline
#else
#define INLINE static inline __attribute__((always_inline))
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

INLINE void convert(int type, columns_of_32 * b, int broad, int blocks, const char * B, size_t nb_b) {
    b->size = has_least(type) ? sizeof(block_q8_1) : sizeof(block_q8_0);
    if (broad < BROAD) { /* the rest is multiplied too, and what the stack holds may be numbers that take long */
        memset(b->scales, 0, blocks * sizeof(b->scales[0]));
        if (has_least(type)) {
            memset(b->sums, 0, blocks * sizeof(b->sums[0]));
        }
    }
    for (int j = 0; j < broad; j++) {
        const char * column = B + j * nb_b;
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

/* It defines

       TALL, the rows of A that `tile` takes at once, and COLUMNS, the columns of B that `dots` takes at once: without
           COLUMNS, there is no kernel for F16;
       b_float and convert_f16: what columns of B in F16 are converted to before they are multiplied, and the function;
       dots, tile and row_of_256: products of one or several rows with several columns, of F16, blocks of 32, and blocks
           of 256 elements;
       has_pairs, is_fast_alone and follows_ggml: what edgespec_chunk leaves to ggml. */
#include OWN_KERNELS

#endif

#ifdef COLUMNS

/* The rows with all columns, of whose number the compiler makes a constant. */
INLINE void strip_of_f16(int columns, int k, const ggml_fp16_t * a, int64_t lda, int64_t rows, const b_float * b,
                         float * c, int64_t ldc) {
    for (int64_t row = 0; row < rows; row++) {
        dots(columns, k, a + row * lda, b, c + row, ldc);
    }
}

bool edgespec_narrow(const struct ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A,
                     int64_t lda, const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype) {
    if (n < 2 || k > LONGEST || Atype != GGML_TYPE_F16 || Btype != GGML_TYPE_F16 || Ctype != GGML_TYPE_F32) {
        return false;
    }
    b_float b[COLUMNS * LONGEST];
    const int64_t end = m * (params->ith + 1) / params->nth;
    for (int64_t row = m * params->ith / params->nth; row < end; row += STRIP) {
        const int64_t rows = MIN(STRIP, end - row);
        const ggml_fp16_t * a = (const ggml_fp16_t *) A + row * lda;
        for (int64_t column = 0, columns; column < n; column += columns) {
            columns = part(n - column, COLUMNS);
            for (int i = 0; i < columns; i++) {
                convert_f16((const ggml_fp16_t *) B + (column + i) * ldb, b + i * LONGEST, k);
            }
            float * c = (float *) C + column * ldc + row;
            switch (columns) {
                case 1: strip_of_f16(1, (int) k, a, lda, rows, b, c, ldc); break;
                case 2: strip_of_f16(2, (int) k, a, lda, rows, b, c, ldc); break;
                case 3: strip_of_f16(3, (int) k, a, lda, rows, b, c, ldc); break;
                case 4: strip_of_f16(4, (int) k, a, lda, rows, b, c, ldc); break;
#if COLUMNS > 4
                case 5: strip_of_f16(5, (int) k, a, lda, rows, b, c, ldc); break;
                case 6: strip_of_f16(6, (int) k, a, lda, rows, b, c, ldc); break;
#endif
            }
        }
    }
    return true;
}

#else

bool edgespec_narrow(const struct ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A,
                     int64_t lda, const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype) {
    (void) params, (void) m, (void) n, (void) k, (void) A, (void) lda, (void) B, (void) ldb;
    (void) C, (void) ldc, (void) Atype, (void) Btype, (void) Ctype;
    return false;
}

#endif

#ifdef OWN_KERNELS

/* Quantised rows with all columns. The weights of a row are unpacked once for up to BROAD columns. */

INLINE void rows_of_32(int type, int blocks, const char * a, size_t nb_a, int64_t rows, const char * b, size_t nb_b,
                       int64_t columns, char * c, size_t nb_c) {
    columns_of_32 bs;
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, BROAD);
        convert(type, &bs, (int) broad, blocks, b + column * nb_b, nb_b);
        char * cs = c + column * nb_c;
        for (int64_t row = 0, tall; row < rows; row += tall) {
            tall = row + TALL <= rows ? TALL : 1;
            const char * as = a + row * nb_a;
            switch (4 * (tall > 1) + broad) { /* constants, so that the sums stay in registers */
                case 1: tile(type, 1, 1, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 2: tile(type, 1, 2, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 3: tile(type, 1, 3, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 4: tile(type, 1, 4, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 5: tile(type, TALL, 1, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 6: tile(type, TALL, 2, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 7: tile(type, TALL, 3, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
                case 8: tile(type, TALL, 4, blocks, as, nb_a, &bs, cs + row * sizeof(float), nb_c); break;
            }
        }
    }
}

INLINE void rows_of_256(int type, int blocks, const char * a, size_t nb_a, int64_t rows, const char * b, size_t nb_b,
                        int64_t columns, char * c, size_t nb_c) {
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, BROAD);
        const block_q8_K * bs[BROAD];
        for (int j = 0; j < broad; j++) {
            bs[j] = (const block_q8_K *) (b + (column + j) * nb_b);
        }
        for (int64_t row = 0; row < rows; row++) {
            const char * as = a + row * nb_a;
            char * out = c + column * nb_c + row * sizeof(float);
            switch (broad) {
                case 1: row_of_256(type, 1, blocks, as, bs, out, nb_c); break;
                case 2: row_of_256(type, 2, blocks, as, bs, out, nb_c); break;
                case 3: row_of_256(type, 3, blocks, as, bs, out, nb_c); break;
                case 4: row_of_256(type, 4, blocks, as, bs, out, nb_c); break;
            }
        }
    }
}

/* Code for each type, so that the compiler leaves out what a type does not need. */
#define OF_32(type)                                                                                                    \
    case type: rows_of_32(type, (int) (k / 32), A, nb_a, rows, B, nb_b, columns, C, nb_c); return true
#define OF_256(type)                                                                                                   \
    case type: rows_of_256(type, (int) (k / QK_K), A, nb_a, rows, B, nb_b, columns, C, nb_c); return true

bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows, const void * B, size_t nb_b,
                    int64_t columns, void * C, size_t nb_c) {
    if (!is_own(type) || (is_of_32(type) && k > 32 * MOST_BLOCKS) || (has_pairs(type) && k % 64)) {
        return false;
    }
    if (!follows_ggml(type) || (columns == 1 && is_fast_alone(type, nb_a))) {
        return false;
    }
    switch (type) {
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
        default: return false;
    }
}

#else

bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows, const void * B, size_t nb_b,
                    int64_t columns, void * C, size_t nb_c) {
    (void) type, (void) k, (void) A, (void) nb_a, (void) rows, (void) B, (void) nb_b, (void) columns, (void) C;
    (void) nb_c;
    return false;
}

#endif
