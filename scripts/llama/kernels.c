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

static bool is_own(int type) {
#ifdef OWN_KERNELS
    return edgespec_kernel_bounds[EDGESPEC_OWN] &&
           (type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q6_K);
#else
    (void) type;
    return false;
#endif
}

bool edgespec_is_narrow(int type, int64_t rows, int64_t matrices) {
    const bool is_quantised = ggml_is_quantized((enum ggml_type) type);
    return (matrices == 1 && is_own(type)) ||
           rows < edgespec_kernel_bounds[is_quantised ? EDGESPEC_SGEMM_QUANT : EDGESPEC_SGEMM_FLOAT];
}

#ifdef OWN_KERNELS
#include <immintrin.h>

#define ROWS 2 /* of A at once, */
#ifdef __AVX512F__
#define COLUMNS 6 /* and columns of B */
#else
#define COLUMNS 4
#endif
#define STRIP 32     /* rows of A that stay in the second level of the cache while all columns pass */
#define LONGEST 4096 /* elements of a row; longer ones would take too much of a thread's stack */

#ifdef _MSC_VER
#define INLINE static __forceinline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* How many columns come next, of those that are left: as many as there may be at most, or in equal parts. */
INLINE int64_t part(int64_t left, int most) {
    const int64_t parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
}

/* `rows` of A with `columns` of B, converted already, as ggml_vec_dot_f16 adds them up: in several sums a row, which are
   made one after the other here so that those of many rows and columns stay in registers. The rows that come next are
   fetched in order: the hardware does not foresee them where several are read at once. */
INLINE void dots(int rows, int columns, int k, const ggml_fp16_t * a, int64_t lda, const float * b, float * c,
                 int64_t ldc) {
    const int np = k & ~(GGML_F16_DOT_STEP - 1);
    GGML_F16_DOT_VEC sums[ROWS][COLUMNS][GGML_F16_DOT_ARR];
    const ggml_fp16_t * ahead = a + rows * lda;
    for (int j = 0; j < GGML_F16_DOT_ARR; j++) {
        GGML_F16_DOT_VEC sum[ROWS][COLUMNS];
        for (int row = 0; row < rows; row++) {
            for (int column = 0; column < columns; column++) {
                sum[row][column] = GGML_F16_DOT_VEC_ZERO;
            }
        }
        for (int at = j * GGML_F16_DOT_EPR; at < np; at += GGML_F16_DOT_STEP) {
            if (j == 0) {
                for (int i = 0; i < rows * GGML_F16_DOT_STEP; i += 32, ahead += 32) {
                    _mm_prefetch((const char *) ahead, _MM_HINT_T0);
                }
            }
            GGML_F16_DOT_VEC ax[ROWS];
            for (int row = 0; row < rows; row++) {
                ax[row] = GGML_F16_DOT_VEC_LOAD(a + row * lda + at, j);
            }
            for (int column = 0; column < columns; column++) {
                const GGML_F16_DOT_VEC bx = GGML_F32_VEC_LOAD(b + column * LONGEST + at);
                for (int row = 0; row < rows; row++) {
                    sum[row][column] = GGML_F16_DOT_VEC_FMA(sum[row][column], ax[row], bx);
                }
            }
        }
        for (int row = 0; row < rows; row++) {
            for (int column = 0; column < columns; column++) {
                sums[row][column][j] = sum[row][column];
            }
        }
    }
    for (int row = 0; row < rows; row++) {
        for (int column = 0; column < columns; column++) {
            ggml_float sum = 0.0;
            GGML_F16_DOT_VEC_REDUCE(sum, sums[row][column]);
            for (int i = np; i < k; i++) {
                sum += (ggml_float) (GGML_CPU_FP16_TO_FP32(a[row * lda + i]) * b[column * LONGEST + i]);
            }
            c[column * ldc + row] = sum;
        }
    }
}

/* The rows with all columns, of whose number the compiler makes a constant. */
INLINE void strip_of_f16(int columns, int k, const ggml_fp16_t * a, int64_t lda, int64_t rows, const float * b,
                         float * c, int64_t ldc) {
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS) {
        dots(ROWS, columns, k, a + row * lda, lda, b, c + row, ldc);
    }
    for (; row < rows; row++) {
        dots(1, columns, k, a + row * lda, lda, b, c + row, ldc);
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

/* Q8_0. As ggml_vec_dot_q8_0_q8_0 adds them up: eight sums a row, each of every fourth product of a block, scaled. */

INLINE float sum_of_eight(__m256 sums) {
    __m128 four = _mm_add_ps(_mm256_extractf128_ps(sums, 1), _mm256_castps256_ps128(sums));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

INLINE __m256i load(const block_q8_0 * block) {
    return _mm256_loadu_si256((const __m256i *) block->qs);
}

#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#define WIDTH 2 /* rows of A in a register */
#define TALL 4  /* registers of rows at once, */
#define BROAD 4 /* and columns of B */

/* Instructions multiply unsigned bytes by signed ones: A gets 128 more, and the sums 128 times B less. */
INLINE void tile(int tall, int broad, int blocks, const char * a, size_t nb_a, const block_q8_0 * const * b, float * c,
                 int64_t ldc) {
    const __m512i high = _mm512_set1_epi8((char) 0x80);
    const __m512i halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512 sums[TALL][BROAD];
    for (int i = 0; i < tall; i++) {
        for (int j = 0; j < broad; j++) {
            sums[i][j] = _mm512_setzero_ps();
        }
    }
    const char * ahead = a + 2 * tall * nb_a;
    for (int block = 0; block < blocks; block++) {
        for (int i = 0; i < 2 * tall * (int) sizeof(block_q8_0); i += 64, ahead += 64) {
            _mm_prefetch(ahead, _MM_HINT_T0);
        }
        __m512i ax[TALL];
        __m512 ad[TALL];
        for (int i = 0; i < tall; i++) {
            const block_q8_0 * one = (const block_q8_0 *) (a + 2 * i * nb_a) + block;
            const block_q8_0 * other = (const block_q8_0 *) (a + (2 * i + 1) * nb_a) + block;
            const __m128i d = _mm_cvtsi32_si128((int) (one->d | (uint32_t) other->d << 16));
            ax[i] = _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(load(one)), load(other), 1), high);
            ad[i] = _mm512_permutexvar_ps(halves, _mm512_castps128_ps512(_mm_cvtph_ps(d)));
        }
        for (int j = 0; j < broad; j++) {
            const __m512i bx = _mm512_broadcast_i64x4(load(b[j] + block));
            const __m512 bd = _mm512_set1_ps(GGML_CPU_FP16_TO_FP32(b[j][block].d));
            const __m512i zero = _mm512_setzero_si512();
            const __m512i less = _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, high, bx));
            for (int i = 0; i < tall; i++) {
                const __m512 products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(less, ax[i], bx));
                sums[i][j] = _mm512_fmadd_ps(_mm512_mul_ps(ad[i], bd), products, sums[i][j]);
            }
        }
    }
    for (int j = 0; j < broad; j++) {
        for (int i = 0; i < tall; i++) {
            c[j * ldc + 2 * i] = sum_of_eight(_mm512_castps512_ps256(sums[i][j]));
            const __m512d other = _mm512_castps_pd(sums[i][j]);
            c[j * ldc + 2 * i + 1] = sum_of_eight(_mm256_castpd_ps(_mm512_extractf64x4_pd(other, 1)));
        }
    }
}

#else
#define WIDTH 1
#define TALL 2
#define BROAD 3

/* Instructions multiply unsigned bytes by signed ones: A's signs are taken to B. */
INLINE void tile(int tall, int broad, int blocks, const char * a, size_t nb_a, const block_q8_0 * const * b, float * c,
                 int64_t ldc) {
    const char * ahead = a + tall * nb_a;
    __m256 sums[TALL][BROAD];
    for (int i = 0; i < tall; i++) {
        for (int j = 0; j < broad; j++) {
            sums[i][j] = _mm256_setzero_ps();
        }
    }
    for (int block = 0; block < blocks; block++) {
        for (int i = 0; i < tall * (int) sizeof(block_q8_0); i += 64, ahead += 64) {
            _mm_prefetch(ahead, _MM_HINT_T0);
        }
        for (int i = 0; i < tall; i++) {
            const block_q8_0 * one = (const block_q8_0 *) (a + i * nb_a) + block;
            const __m256i ax = load(one);
            const __m256i size = _mm256_sign_epi8(ax, ax);
            const float ad = GGML_CPU_FP16_TO_FP32(one->d);
            for (int j = 0; j < broad; j++) {
                const __m256i bx = _mm256_sign_epi8(load(b[j] + block), ax);
                const __m256 d = _mm256_set1_ps(ad * GGML_CPU_FP16_TO_FP32(b[j][block].d));
#ifdef __AVXVNNI__
                const __m256i products = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), size, bx);
#else
                const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(size, bx), _mm256_set1_epi16(1));
#endif
                sums[i][j] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(products), sums[i][j]);
            }
        }
    }
    for (int j = 0; j < broad; j++) {
        for (int i = 0; i < tall; i++) {
            c[j * ldc + i] = sum_of_eight(sums[i][j]);
        }
    }
}
#endif

/* All columns with so many rows of A. */
INLINE void strip(int tall, int blocks, const char * a, size_t nb_a, int64_t rows, const char * b, size_t nb_b,
                  int64_t columns, char * c, size_t nb_c) {
    const block_q8_0 * bs[BROAD];
    float out[BROAD * TALL * WIDTH];
    if (rows < tall * WIDTH) {
        nb_a = 0; /* the only row that is left, twice */
    }
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, BROAD);
        for (int j = 0; j < broad; j++) {
            bs[j] = (const block_q8_0 *) (b + (column + j) * nb_b);
        }
        switch (broad) { /* constants, so that the sums stay in registers */
            case 1: tile(tall, 1, blocks, a, nb_a, bs, out, TALL * WIDTH); break;
            case 2: tile(tall, 2, blocks, a, nb_a, bs, out, TALL * WIDTH); break;
            case 3: tile(tall, 3, blocks, a, nb_a, bs, out, TALL * WIDTH); break;
#if BROAD > 3
            case 4: tile(tall, 4, blocks, a, nb_a, bs, out, TALL * WIDTH); break;
#endif
        }
        for (int j = 0; j < broad; j++) {
            memcpy(c + (column + j) * nb_c, out + j * TALL * WIDTH, rows * sizeof(float));
        }
    }
}

/* K-quants: one row of A, unpacked once for all columns. `scaled` adds products of 32 elements, times their scales. */

INLINE __m256i scaled(__m256i sums, __m256i ax, const int8_t * b, __m256i scales) {
    const __m256i products = _mm256_maddubs_epi16(ax, _mm256_loadu_si256((const __m256i *) b));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(scales, products));
}

/* As ggml_vec_dot_q4_K_q8_K adds them up. */
INLINE void row_of_q4_k(int broad, int blocks, const block_q4_K * a, const block_q8_K * const * b, float * c) {
    const __m256i low = _mm256_set1_epi8(0xF);
    __m256 sums[BROAD];
    __m128 least[BROAD];
    for (int j = 0; j < broad; j++) {
        sums[j] = _mm256_setzero_ps();
        least[j] = _mm_setzero_ps();
    }
    for (int block = 0; block < blocks; block++, a++) {
        uint32_t packed[3];
        memcpy(packed, a->scales, sizeof(packed));
        union {
            uint32_t words[4];
            uint8_t bytes[16];
        } six = {{
            packed[0] & 0x3f3f3f3f,
            (packed[2] & 0x0f0f0f0f) | ((packed[0] >> 6 & 0x03030303) << 4),
            packed[1] & 0x3f3f3f3f,
            (packed[2] >> 4 & 0x0f0f0f0f) | ((packed[1] >> 6 & 0x03030303) << 4),
        }};
        __m256i whole[BROAD];
        for (int j = 0; j < broad; j++) {
            whole[j] = _mm256_setzero_si256();
        }
        for (int pair = 0; pair < QK_K / 64; pair++) {
            const __m256i bits = _mm256_loadu_si256((const __m256i *) (a->qs + 32 * pair));
            const __m256i first = _mm256_and_si256(bits, low);
            const __m256i second = _mm256_and_si256(_mm256_srli_epi16(bits, 4), low);
            const __m256i first_scale = _mm256_set1_epi16(six.bytes[2 * pair]);
            const __m256i second_scale = _mm256_set1_epi16(six.bytes[2 * pair + 1]);
            for (int j = 0; j < broad; j++) {
                const int8_t * bx = b[j][block].qs + 64 * pair;
                whole[j] = scaled(scaled(whole[j], first, bx, first_scale), second, bx + 32, second_scale);
            }
        }
        const __m128i minima = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) (six.bytes + 8)));
        const float ad = GGML_CPU_FP16_TO_FP32(a->d), am = GGML_CPU_FP16_TO_FP32(a->dmin);
        for (int j = 0; j < broad; j++) {
            const float bd = b[j][block].d;
            const __m128i * all = (const __m128i *) b[j][block].bsums;
            const __m128i pairs = _mm_hadd_epi16(_mm_loadu_si128(all), _mm_loadu_si128(all + 1));
            const __m128 products = _mm_cvtepi32_ps(_mm_madd_epi16(minima, pairs));
            least[j] = _mm_fmadd_ps(_mm_set1_ps(-bd * am), products, least[j]);
            sums[j] = _mm256_fmadd_ps(_mm256_set1_ps(bd * ad), _mm256_cvtepi32_ps(whole[j]), sums[j]);
        }
    }
    for (int j = 0; j < broad; j++) {
        least[j] = _mm_add_ps(least[j], _mm_movehl_ps(least[j], least[j]));
        c[j] = sum_of_eight(sums[j]) + _mm_cvtss_f32(_mm_add_ss(least[j], _mm_movehdup_ps(least[j])));
    }
}

/* As ggml_vec_dot_q6_K_q8_K adds them up. */
INLINE void row_of_q6_k(int broad, int blocks, const block_q6_K * a, const block_q8_K * const * b, float * c) {
    const __m256i low = _mm256_set1_epi8(0xF);
    const __m256i high = _mm256_set1_epi8(0x30);
    __m256 sums[BROAD];
    for (int j = 0; j < broad; j++) {
        sums[j] = _mm256_setzero_ps();
    }
    for (int block = 0; block < blocks; block++, a++) {
        __m256i whole[BROAD];
        for (int j = 0; j < broad; j++) {
            whole[j] = _mm256_setzero_si256();
        }
        for (int half = 0; half < 2; half++) {
            const __m256i one = _mm256_loadu_si256((const __m256i *) (a->ql + 64 * half));
            const __m256i two = _mm256_loadu_si256((const __m256i *) (a->ql + 64 * half + 32));
            const __m256i top = _mm256_loadu_si256((const __m256i *) (a->qh + 32 * half));
            const __m256i ax[4] = {
                _mm256_or_si256(_mm256_and_si256(one, low), _mm256_and_si256(_mm256_slli_epi16(top, 4), high)),
                _mm256_or_si256(_mm256_and_si256(two, low), _mm256_and_si256(_mm256_slli_epi16(top, 2), high)),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(one, 4), low), _mm256_and_si256(top, high)),
                _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(two, 4), low),
                                _mm256_and_si256(_mm256_srli_epi16(top, 2), high)),
            };
            for (int quarter = 0; quarter < 4; quarter++) {
                const int8_t * scales = a->scales + 8 * half + 2 * quarter;
                const __m256i scale = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi16(scales[0])),
                                                              _mm_set1_epi16(scales[1]), 1);
                for (int j = 0; j < broad; j++) {
                    whole[j] = scaled(whole[j], ax[quarter], b[j][block].qs + 128 * half + 32 * quarter, scale);
                }
            }
        }
        const __m256i all = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) a->scales));
        const float ad = GGML_CPU_FP16_TO_FP32(a->d);
        for (int j = 0; j < broad; j++) { /* elements are 32 less */
            const __m256i of_16 = _mm256_loadu_si256((const __m256i *) b[j][block].bsums);
            const __m256i less = _mm256_slli_epi32(_mm256_madd_epi16(of_16, all), 5);
            const __m256 products = _mm256_cvtepi32_ps(_mm256_sub_epi32(whole[j], less));
            sums[j] = _mm256_fmadd_ps(_mm256_set1_ps(b[j][block].d * ad), products, sums[j]);
        }
    }
    for (int j = 0; j < broad; j++) {
        c[j] = sum_of_eight(sums[j]);
    }
}

INLINE void row_of_k(int type, int broad, int blocks, const void * a, const block_q8_K * const * b, float * c) {
    if (type == GGML_TYPE_Q4_K) {
        row_of_q4_k(broad, blocks, a, b, c);
    } else {
        row_of_q6_k(broad, blocks, a, b, c);
    }
}

static void rows_of_k(int type, int blocks, const char * a, size_t nb_a, int64_t rows, const char * b, size_t nb_b,
                      int64_t columns, char * c, size_t nb_c) {
    for (int64_t column = 0, broad; column < columns; column += broad) {
        broad = part(columns - column, BROAD);
        const block_q8_K * bs[BROAD];
        float out[BROAD];
        for (int j = 0; j < broad; j++) {
            bs[j] = (const block_q8_K *) (b + (column + j) * nb_b);
        }
        for (int64_t row = 0; row < rows; row++) {
            const char * ax = a + row * nb_a;
            switch (broad) {
                case 1: row_of_k(type, 1, blocks, ax, bs, out); break;
                case 2: row_of_k(type, 2, blocks, ax, bs, out); break;
                case 3: row_of_k(type, 3, blocks, ax, bs, out); break;
#if BROAD > 3
                case 4: row_of_k(type, 4, blocks, ax, bs, out); break;
#endif
            }
            for (int j = 0; j < broad; j++) {
                *(float *) (c + (column + j) * nb_c + row * sizeof(float)) = out[j];
            }
        }
    }
}

static void rows_of_q8_0(int blocks, const char * a, size_t nb_a, int64_t rows, const char * b, size_t nb_b,
                         int64_t columns, char * c, size_t nb_c) {
    int64_t row = 0;
    for (; row + TALL * WIDTH <= rows; row += TALL * WIDTH) {
        strip(TALL, blocks, a + row * nb_a, nb_a, TALL * WIDTH, b, nb_b, columns, c + row * sizeof(float), nb_c);
    }
    for (; row < rows; row += WIDTH) {
        const int64_t left = MIN(WIDTH, rows - row);
        strip(1, blocks, a + row * nb_a, nb_a, left, b, nb_b, columns, c + row * sizeof(float), nb_c);
    }
}

bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows, const void * B, size_t nb_b,
                    int64_t columns, void * C, size_t nb_c) {
    if (!is_own(type)) {
        return false;
    }
    if (type == GGML_TYPE_Q8_0) {
        rows_of_q8_0((int) (k / QK8_0), A, nb_a, rows, B, nb_b, columns, C, nb_c);
    } else {
        rows_of_k(type, (int) (k / QK_K), A, nb_a, rows, B, nb_b, columns, C, nb_c);
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

bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows, const void * B, size_t nb_b,
                    int64_t columns, void * C, size_t nb_c) {
    (void) type, (void) k, (void) A, (void) nb_a, (void) rows, (void) B, (void) nb_b, (void) columns, (void) C;
    (void) nb_c;
    return false;
}

#endif
