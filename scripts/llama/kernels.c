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

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__) && defined(__FMA__))
#define OWN_KERNELS
#endif

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
#include <immintrin.h>

#ifdef __AVX512F__
#define COLUMNS 6 /* of B in F16 at once */
#else
#define COLUMNS 4
#endif
#define AHEAD 32768  /* bytes between a read and its prefetch, where the order of reads is not that in memory */
#define SEGMENT 1024 /* elements of a row: those of all columns stay in the first level of the cache */
#define STRIP 32     /* rows of A that stay in the second level of the cache while all columns pass */
#define LONGEST 4096 /* elements of a row; longer ones would take too much of a thread's stack */

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

/* A row of A with `columns` of B, converted already, as ggml_vec_dot_f16 adds them up: in several sums a row. For a
   segment of the row they are made one after the other, so that those of many columns stay in registers. */
INLINE void dots(int columns, int k, const ggml_fp16_t * a, const float * b, float * c, int64_t ldc) {
    const int np = k & ~(GGML_F16_DOT_STEP - 1);
    GGML_F16_DOT_VEC sums[COLUMNS][GGML_F16_DOT_ARR];
    for (int column = 0; column < columns; column++) {
        for (int j = 0; j < GGML_F16_DOT_ARR; j++) {
            sums[column][j] = GGML_F16_DOT_VEC_ZERO;
        }
    }
    for (int start = 0, end; start < np; start = end) {
        end = MIN(np, start + SEGMENT);
        for (int at = start; at < end; at += 32) {
            _mm_prefetch((const char *) (a + at) + AHEAD, _MM_HINT_T1);
        }
        for (int j = 0; j < GGML_F16_DOT_ARR; j++) {
            GGML_F16_DOT_VEC sum[COLUMNS];
            for (int column = 0; column < columns; column++) {
                sum[column] = sums[column][j];
            }
            for (int at = start + j * GGML_F16_DOT_EPR; at < end; at += GGML_F16_DOT_STEP) {
                const GGML_F16_DOT_VEC ax = GGML_F16_DOT_VEC_LOAD(a + at, j);
                for (int column = 0; column < columns; column++) {
                    const GGML_F16_DOT_VEC bx = GGML_F32_VEC_LOAD(b + column * LONGEST + at);
                    sum[column] = GGML_F16_DOT_VEC_FMA(sum[column], ax, bx);
                }
            }
            for (int column = 0; column < columns; column++) {
                sums[column][j] = sum[column];
            }
        }
    }
    for (int column = 0; column < columns; column++) {
        ggml_float sum = 0.0;
        GGML_F16_DOT_VEC_REDUCE(sum, sums[column]);
        for (int i = np; i < k; i++) {
            sum += (ggml_float) (GGML_CPU_FP16_TO_FP32(a[i]) * b[column * LONGEST + i]);
        }
        c[column * ldc] = sum;
    }
}

/* The rows with all columns, of whose number the compiler makes a constant. */
INLINE void strip_of_f16(int columns, int k, const ggml_fp16_t * a, int64_t lda, int64_t rows, const float * b,
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
    float b[COLUMNS * LONGEST];
    const int64_t end = m * (params->ith + 1) / params->nth;
    for (int64_t row = m * params->ith / params->nth; row < end; row += STRIP) {
        const int64_t rows = MIN(STRIP, end - row);
        const ggml_fp16_t * a = (const ggml_fp16_t *) A + row * lda;
        for (int64_t column = 0, columns; column < n; column += columns) {
            columns = part(n - column, COLUMNS);
            for (int i = 0; i < columns; i++) {
                ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) B + (column + i) * ldb, b + i * LONGEST, k);
            }
            float * c = (float *) C + column * ldc + row;
            switch (columns) {
                case 1: strip_of_f16(1, (int) k, a, lda, rows, b, c, ldc); break;
                case 2: strip_of_f16(2, (int) k, a, lda, rows, b, c, ldc); break;
                case 3: strip_of_f16(3, (int) k, a, lda, rows, b, c, ldc); break;
                case 4: strip_of_f16(4, (int) k, a, lda, rows, b, c, ldc); break;
#ifdef __AVX512F__
                case 5: strip_of_f16(5, (int) k, a, lda, rows, b, c, ldc); break;
                case 6: strip_of_f16(6, (int) k, a, lda, rows, b, c, ldc); break;
#endif
            }
        }
    }
    return true;
}

/* FOURS adds the products of four unsigned bytes of `a` and signed ones of `b` to each 32 bits of `sum`; PAIRS adds the
   products of two numbers of 16 bits. */
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define TALL 4 /* rows of A at once */
#define FOURS(sum, a, b) _mm256_dpbusd_epi32(sum, a, b)
#define PAIRS(sum, a, b) _mm256_dpwssd_epi32(sum, a, b)
#elif defined(__AVXVNNI__)
#define TALL 2
#define FOURS(sum, a, b) _mm256_dpbusd_avx_epi32(sum, a, b)
#define PAIRS(sum, a, b) _mm256_dpwssd_avx_epi32(sum, a, b)
#else
#define TALL 2
#define PAIRS(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#endif
#define BROAD 4          /* columns of B at once */
#define LONG_ROW 1024    /* bytes of a row from which on ggml reads single columns as fast */
#define MOST_BLOCKS 1024 /* in a row; longer ones would take too much of a thread's stack */

/* Blocks of 32 elements: their bytes are unpacked once for all columns. As ggml_vec_dot_... adds them up: eight sums a
   row, each of every fourth product of a block, scaled. */

/* True for types whose blocks have a least value and unsigned elements. Their activations are Q8_1. */
INLINE bool has_least(int type) {
    return type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_1;
}

/* True for types that ggml adds up in two sums, of the even and of the odd blocks. */
INLINE bool has_pairs(int type) {
    return type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
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

INLINE __m256i nibbles(const uint8_t * qs) {
    const __m128i packed = _mm_loadu_si128((const __m128i *) qs);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(0xF));
}

INLINE __m256i looked_up(const uint8_t * qs, const int8_t * values) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) values)), nibbles(qs));
}

/* Each byte is `bit` if its element's bit is set in the 32 bits at `qh`, else 0. */
INLINE __m256i fifth_bits(const uint8_t * qh, int bit) {
    uint32_t bits;
    memcpy(&bits, qh, sizeof(bits));
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i each = _mm256_set1_epi64x((long long) 0x8040201008040201);
    const __m256i bytes = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int) bits), spread), each);
    return _mm256_and_si256(_mm256_cmpeq_epi8(bytes, each), _mm256_set1_epi8((char) bit));
}

/* The 32 elements of a block, without its scale. */
INLINE __m256i unpacked(int type, const char * block) {
    switch (type) {
        case GGML_TYPE_Q4_0:
            return _mm256_sub_epi8(nibbles(((const block_q4_0 *) block)->qs), _mm256_set1_epi8(8));
        case GGML_TYPE_Q4_1:
            return nibbles(((const block_q4_1 *) block)->qs);
        case GGML_TYPE_Q5_0: {
            const block_q5_0 * five = (const block_q5_0 *) block;
            const __m256i whole = _mm256_or_si256(nibbles(five->qs), fifth_bits(five->qh, 0x10));
            return _mm256_sub_epi8(whole, _mm256_set1_epi8(16));
        }
        case GGML_TYPE_Q5_1: {
            const block_q5_1 * five = (const block_q5_1 *) block;
            return _mm256_or_si256(nibbles(five->qs), fifth_bits(five->qh, 0x10));
        }
        case GGML_TYPE_IQ4_NL:
            return looked_up(((const block_iq4_nl *) block)->qs, kvalues_iq4nl);
        case GGML_TYPE_MXFP4:
            return looked_up(((const block_mxfp4 *) block)->qs, kvalues_mxfp4);
        default:
            return _mm256_loadu_si256((const __m256i *) ((const block_q8_0 *) block)->qs);
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

INLINE float sum_of_eight(__m256 sums) {
    __m128 four = _mm_add_ps(_mm256_extractf128_ps(sums, 1), _mm256_castps256_ps128(sums));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
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

/* Each element of `sums` gets the products of a block of each row with those of each column. Signed bytes of A get 128
   more, and the sums 128 times B less; or their signs are taken to B. */
INLINE void add_block(int type, int tall, int broad, const char * a, size_t nb_a, const columns_of_32 * b, int block,
                      __m256 (*sums)[BROAD], float (*least)[BROAD]) {
    __m256i ax[TALL];
    float d[TALL][BROAD];
    for (int i = 0; i < tall; i++) {
        const char * one = a + i * nb_a;
        ax[i] = unpacked(type, one);
        _mm_storeu_ps(d[i], _mm_mul_ps(_mm_set1_ps(scale_of(type, one)), _mm_loadu_ps(b->scales[block])));
        for (int j = 0; j < BROAD && has_least(type); j++) {
            least[i][j] += least_of(one) * b->sums[block][j];
        }
    }
#ifdef FOURS
    const __m256i high = _mm256_set1_epi8((char) 0x80);
    for (int i = 0; i < tall && !has_least(type); i++) {
        ax[i] = _mm256_xor_si256(ax[i], high);
    }
#endif
    for (int j = 0; j < broad; j++) {
        const __m256i bx = _mm256_loadu_si256((const __m256i *) (b->bytes[j] + block * b->size));
#ifdef FOURS
        const __m256i zero = _mm256_setzero_si256();
        const __m256i less = has_least(type) ? zero : _mm256_sub_epi32(zero, FOURS(zero, high, bx));
#endif
        for (int i = 0; i < tall; i++) {
#ifdef FOURS
            const __m256i products = FOURS(less, ax[i], bx);
#else
            const __m256i size = has_least(type) ? ax[i] : _mm256_sign_epi8(ax[i], ax[i]);
            const __m256i twos = _mm256_maddubs_epi16(size, has_least(type) ? bx : _mm256_sign_epi8(bx, ax[i]));
            const __m256i products = _mm256_madd_epi16(twos, _mm256_set1_epi16(1));
#endif
            sums[i][j] = _mm256_fmadd_ps(_mm256_set1_ps(d[i][j]), _mm256_cvtepi32_ps(products), sums[i][j]);
        }
    }
}

INLINE void tile(int type, int tall, int broad, int blocks, const char * a, size_t nb_a, const columns_of_32 * b,
                 char * c, size_t nb_c) {
    const size_t size = size_of_block(type);
    const int apart = has_pairs(type) ? 2 : 1;
    const char * ahead = a + AHEAD;
    __m256 all[TALL][BROAD];
    float least[TALL][BROAD];
    memset(least, 0, sizeof(least));
    for (int first = 0; first < apart; first++) {
        __m256 sums[TALL][BROAD];
        for (int i = 0; i < tall; i++) {
            for (int j = 0; j < broad; j++) {
                sums[i][j] = _mm256_setzero_ps();
            }
        }
        for (int block = first; block < blocks; block += apart) {
            for (int i = 0; i < tall * (int) size; i += 64, ahead += 64) {
                _mm_prefetch(ahead, _MM_HINT_T1);
            }
            add_block(type, tall, broad, a + block * size, nb_a, b, block, sums, least);
        }
        for (int i = 0; i < tall; i++) {
            for (int j = 0; j < broad; j++) {
                all[i][j] = first ? _mm256_add_ps(all[i][j], sums[i][j]) : sums[i][j];
            }
        }
    }
    for (int j = 0; j < broad; j++) {
        float * out = (float *) (c + j * nb_c);
        for (int i = 0; i < tall; i++) {
            out[i] = has_least(type) ? sum_of_eight(all[i][j]) + least[i][j] : sum_of_eight(all[i][j]);
        }
    }
}

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

/* K-quants and IQ4_XS: blocks of 256 elements, unpacked once for all columns. As ggml_vec_dot_... adds them up: eight
   whole sums a block, each of four products of every 32, times their scales. */

/* The sums of a row with each column. */
typedef struct {
    __m256i whole[BROAD]; /* of a block */
    __m256 scaled[BROAD];
    __m128 least[BROAD]; /* of the least values of Q4_K, */
    float minima[BROAD]; /* and of Q5_K */
} sums_of_256;

INLINE void clear(sums_of_256 * sums, int broad) {
    for (int j = 0; j < broad; j++) {
        sums->whole[j] = _mm256_setzero_si256();
    }
}

/* Adds the products of 32 unsigned elements with those of B from `at` on, times the scales of their pairs. */
INLINE void add_unsigned(sums_of_256 * sums, int broad, __m256i ax, const block_q8_K * const * b, int at,
                         __m256i scales) {
    for (int j = 0; j < broad; j++) {
        const __m256i bx = _mm256_loadu_si256((const __m256i *) (b[j]->qs + at));
        sums->whole[j] = PAIRS(sums->whole[j], scales, _mm256_maddubs_epi16(ax, bx));
    }
}

INLINE void add_signed(sums_of_256 * sums, int broad, __m256i ax, const block_q8_K * const * b, int at,
                       __m256i scales) {
    const __m256i size = _mm256_sign_epi8(ax, ax);
    for (int j = 0; j < broad; j++) {
        const __m256i bx = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i *) (b[j]->qs + at)), ax);
        sums->whole[j] = PAIRS(sums->whole[j], scales, _mm256_maddubs_epi16(size, bx));
    }
}

/* Two of eight scales of 16 bits, each for 16 elements. Number n of the scales is in the bytes 2n and 2n + 1, which are
   the bytes of 514n + 256. */
INLINE __m256i two_of(__m128i scales, int first, int second) {
    const __m256i places = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16((short) (514 * first + 256))),
                                                   _mm_set1_epi16((short) (514 * second + 256)), 1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(scales), places);
}

/* The sum of each 16 elements of B, times a number. */
INLINE __m256i sums_of_16(const block_q8_K * b, __m256i numbers) {
    return _mm256_madd_epi16(numbers, _mm256_loadu_si256((const __m256i *) b->bsums));
}

/* The whole sums of a block, times its scale. */
INLINE void add_scaled(sums_of_256 * sums, int j, float d, __m256i whole) {
    sums->scaled[j] = _mm256_fmadd_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(whole), sums->scaled[j]);
}

/* Bits of each byte, moved to the right (left if negative). */
INLINE __m256i moved(__m256i bits, int by, __m256i mask) {
    return _mm256_and_si256(by < 0 ? _mm256_slli_epi16(bits, -by) : _mm256_srli_epi16(bits, by), mask);
}

INLINE void add_q2_k(sums_of_256 * sums, int broad, const block_q2_K * a, const block_q8_K * const * b) {
    const __m128i both = _mm_loadu_si128((const __m128i *) a->scales), nibble = _mm_set1_epi8(0xF);
    const __m256i minima = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), nibble));
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_and_si128(both, nibble));
    for (int half = 0; half < 2; half++) {
        const __m128i eight = half ? _mm256_extracti128_si256(scales, 1) : _mm256_castsi256_si128(scales);
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (a->qs + 32 * half));
        for (int quarter = 0; quarter < 4; quarter++) {
            const __m256i ax = moved(bits, 2 * quarter, _mm256_set1_epi8(3));
            add_unsigned(sums, broad, ax, b, 128 * half + 32 * quarter, two_of(eight, 2 * quarter, 2 * quarter + 1));
        }
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d), am = GGML_CPU_FP16_TO_FP32(a->dmin);
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, j, -b[j]->d * am, sums_of_16(b[j], minima));
        add_scaled(sums, j, b[j]->d * ad, sums->whole[j]);
    }
}

INLINE void add_q3_k(sums_of_256 * sums, int broad, const block_q3_K * a, const block_q8_K * const * b) {
    uint32_t packed[3];
    memcpy(packed, a->scales, sizeof(packed));
    const __m128i six = _mm_set_epi32((int) ((packed[1] >> 4 & 0x0f0f0f0f) | (packed[2] >> 6 & 0x03030303) << 4),
                                      (int) ((packed[0] >> 4 & 0x0f0f0f0f) | (packed[2] >> 4 & 0x03030303) << 4),
                                      (int) ((packed[1] & 0x0f0f0f0f) | (packed[2] >> 2 & 0x03030303) << 4),
                                      (int) ((packed[0] & 0x0f0f0f0f) | (packed[2] & 0x03030303) << 4));
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_sub_epi8(six, _mm_set1_epi8(32)));
    const __m256i four = _mm256_set1_epi8(4);
    const __m256i high = _mm256_loadu_si256((const __m256i *) a->hmask);
    for (int half = 0; half < 2; half++) {
        const __m128i eight = half ? _mm256_extracti128_si256(scales, 1) : _mm256_castsi256_si128(scales);
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (a->qs + 32 * half));
        for (int quarter = 0; quarter < 4; quarter++) {
            const int at = 4 * half + quarter;
            const __m256i third = moved(high, at - 2, four); /* of 1 << at */
            const __m256i ax = _mm256_or_si256(moved(bits, 2 * quarter, _mm256_set1_epi8(3)), third);
            const __m256i scale = two_of(eight, 2 * quarter, 2 * quarter + 1);
            add_signed(sums, broad, _mm256_sub_epi8(ax, four), b, 32 * at, scale);
        }
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d);
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, j, b[j]->d * ad, sums->whole[j]);
    }
}

/* Q4_K, and Q5_K with a fifth bit. */
INLINE void add_q45_k(int type, sums_of_256 * sums, int broad, const void * a, const block_q8_K * const * b) {
    const bool has_fifth = type == GGML_TYPE_Q5_K;
    const block_q5_K * five = a;
    const block_q4_K * four = a; /* d, dmin and scales come first in both */
    const uint8_t * qs = has_fifth ? five->qs : four->qs;
    uint32_t packed[3];
    memcpy(packed, four->scales, sizeof(packed));
    union {
        uint32_t words[4];
        uint8_t bytes[16]; /* eight scales, eight least values */
    } six = {{
        packed[0] & 0x3f3f3f3f,
        (packed[2] & 0x0f0f0f0f) | ((packed[0] >> 6 & 0x03030303) << 4),
        packed[1] & 0x3f3f3f3f,
        (packed[2] >> 4 & 0x0f0f0f0f) | ((packed[1] >> 6 & 0x03030303) << 4),
    }};
    const __m128i scales = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) six.bytes));
    const __m256i low = _mm256_set1_epi8(0xF), bit = _mm256_set1_epi8(16);
    const __m256i top = has_fifth ? _mm256_loadu_si256((const __m256i *) five->qh) : low;
    for (int pair = 0; pair < QK_K / 64; pair++) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (qs + 32 * pair));
        for (int half = 0; half < 2; half++) {
            const int at = 2 * pair + half;
            __m256i ax = moved(bits, 4 * half, low);
            if (has_fifth) {
                ax = _mm256_or_si256(ax, moved(top, at - 4, bit));
            }
            add_unsigned(sums, broad, ax, b, 32 * at, two_of(scales, at, at));
        }
    }
    const __m128i minima = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) (six.bytes + 8)));
    const float ad = GGML_CPU_FP16_TO_FP32(four->d), am = GGML_CPU_FP16_TO_FP32(four->dmin);
    for (int j = 0; j < broad; j++) {
        const float dmin = -b[j]->d * am;
        const __m128i * all = (const __m128i *) b[j]->bsums;
        const __m128i pairs = _mm_hadd_epi16(_mm_loadu_si128(all), _mm_loadu_si128(all + 1));
        __m128i least = _mm_madd_epi16(minima, pairs);
        if (has_fifth) {
            least = _mm_add_epi32(least, _mm_unpackhi_epi64(least, least));
            sums->minima[j] += dmin * (_mm_cvtsi128_si32(least) + _mm_extract_epi32(least, 1));
        } else {
            sums->least[j] = _mm_fmadd_ps(_mm_set1_ps(dmin), _mm_cvtepi32_ps(least), sums->least[j]);
        }
        add_scaled(sums, j, b[j]->d * ad, sums->whole[j]);
    }
}

INLINE void add_q6_k(sums_of_256 * sums, int broad, const block_q6_K * a, const block_q8_K * const * b) {
    const __m256i low = _mm256_set1_epi8(0xF), high = _mm256_set1_epi8(0x30);
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) a->scales));
    for (int half = 0; half < 2; half++) {
        const __m128i eight = half ? _mm256_extracti128_si256(scales, 1) : _mm256_castsi256_si128(scales);
        const __m256i top = _mm256_loadu_si256((const __m256i *) (a->qh + 32 * half));
        for (int quarter = 0; quarter < 4; quarter++) {
            const __m256i bits = _mm256_loadu_si256((const __m256i *) (a->ql + 64 * half + 32 * (quarter % 2)));
            const __m256i two = moved(top, 2 * quarter - 4, high);
            const __m256i ax = _mm256_or_si256(moved(bits, quarter < 2 ? 0 : 4, low), two);
            add_unsigned(sums, broad, ax, b, 128 * half + 32 * quarter, two_of(eight, 2 * quarter, 2 * quarter + 1));
        }
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d);
    for (int j = 0; j < broad; j++) { /* elements are 32 less */
        const __m256i less = _mm256_slli_epi32(sums_of_16(b[j], scales), 5);
        add_scaled(sums, j, b[j]->d * ad, _mm256_sub_epi32(sums->whole[j], less));
    }
}

INLINE void add_iq4_xs(sums_of_256 * sums, int broad, const block_iq4_xs * a, const block_q8_K * const * b) {
    for (int at = 0; at < QK_K / 32; at++) {
        const int low = a->scales_l[at / 2] >> 4 * (at % 2) & 0xf, high = (a->scales_h >> 2 * at & 3) << 4;
        const __m256i scales = _mm256_set1_epi16((short) ((low | high) - 32));
        add_signed(sums, broad, looked_up(a->qs + 16 * at, kvalues_iq4nl), b, 32 * at, scales);
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d);
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, j, ad * b[j]->d, sums->whole[j]);
    }
}

INLINE void row_of_256(int type, int broad, int blocks, const char * a, const block_q8_K * const * b, char * c,
                       size_t nb_c) {
    const block_q8_K * at[BROAD];
    sums_of_256 sums;
    for (int j = 0; j < broad; j++) {
        at[j] = b[j];
        sums.scaled[j] = _mm256_setzero_ps();
        sums.least[j] = _mm_setzero_ps();
        sums.minima[j] = 0;
    }
    for (int block = 0; block < blocks; block++) {
        clear(&sums, broad);
        switch (type) {
            case GGML_TYPE_Q2_K: add_q2_k(&sums, broad, (const block_q2_K *) a + block, at); break;
            case GGML_TYPE_Q3_K: add_q3_k(&sums, broad, (const block_q3_K *) a + block, at); break;
            case GGML_TYPE_Q4_K: add_q45_k(type, &sums, broad, (const block_q4_K *) a + block, at); break;
            case GGML_TYPE_Q5_K: add_q45_k(type, &sums, broad, (const block_q5_K *) a + block, at); break;
            case GGML_TYPE_Q6_K: add_q6_k(&sums, broad, (const block_q6_K *) a + block, at); break;
            default:             add_iq4_xs(&sums, broad, (const block_iq4_xs *) a + block, at); break;
        }
        for (int j = 0; j < broad; j++) {
            at[j]++;
        }
    }
    for (int j = 0; j < broad; j++) {
        float * out = (float *) (c + j * nb_c);
        const __m128 least = _mm_add_ps(sums.least[j], _mm_movehl_ps(sums.least[j], sums.least[j]));
        *out = sum_of_eight(sums.scaled[j]);
        if (type == GGML_TYPE_Q4_K) {
            *out += _mm_cvtss_f32(_mm_add_ss(least, _mm_movehdup_ps(least)));
        } else if (type == GGML_TYPE_Q5_K) {
            *out += sums.minima[j];
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
    if (columns == 1 && (type == GGML_TYPE_Q4_K || (is_of_32(type) && nb_a >= LONG_ROW))) {
        return false; /* ggml's kernels are as fast or faster: they read one row after the other */
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

bool edgespec_narrow(const struct ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A,
                     int64_t lda, const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype) {
    (void) params, (void) m, (void) n, (void) k, (void) A, (void) lda, (void) B, (void) ldb;
    (void) C, (void) ldc, (void) Atype, (void) Btype, (void) Ctype;
    return false;
}

bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows, const void * B, size_t nb_b,
                    int64_t columns, void * C, size_t nb_c) {
    (void) type, (void) k, (void) A, (void) nb_a, (void) rows, (void) B, (void) nb_b, (void) columns, (void) C;
    (void) nb_c;
    return false;
}

#endif
