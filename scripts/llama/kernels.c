#include "kernels.h"

#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "simd-mappings.h"
#include "vec.h"

int32_t edgespec_kernel_bounds[EDGESPEC_BOUNDS] = {2, 2, 8, 512};

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__) && defined(__FMA__))

#ifdef __AVX512F__
#define COLUMNS 6 /* of B at once: their sums fill the registers */
#else
#define COLUMNS 3
#endif
#define ROWS 32      /* of A at once: they stay in the second level of the cache while all columns pass */
#define LONGEST 4096 /* elements of a row; longer ones would take too much of a thread's stack */

#ifdef _MSC_VER
#define INLINE static __forceinline
#else
#define INLINE static inline __attribute__((always_inline))
#endif

/* One row of A with `columns` of B, converted already, as ggml_vec_dot_f16 adds them up. */
INLINE void dots(int columns, int k, const ggml_fp16_t * a, const float * b, float * c, int64_t ldc) {
    const int np = k & ~(GGML_F16_DOT_STEP - 1);
    GGML_F16_DOT_VEC sums[COLUMNS][GGML_F16_DOT_ARR];
    for (int column = 0; column < columns; column++) {
        for (int j = 0; j < GGML_F16_DOT_ARR; j++) {
            sums[column][j] = GGML_F16_DOT_VEC_ZERO;
        }
    }
    for (int i = 0; i < np; i += GGML_F16_DOT_STEP) {
        for (int j = 0; j < GGML_F16_DOT_ARR; j++) {
            const int at = i + j * GGML_F16_DOT_EPR;
            const GGML_F16_DOT_VEC ax = GGML_F16_DOT_VEC_LOAD(a + at, j);
            for (int column = 0; column < columns; column++) {
                sums[column][j] =
                    GGML_F16_DOT_VEC_FMA(sums[column][j], ax, GGML_F32_VEC_LOAD(b + column * LONGEST + at));
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

bool edgespec_narrow(const struct ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A,
                     int64_t lda, const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype, int Ctype) {
    if (n < 2 || k > LONGEST || Atype != GGML_TYPE_F16 || Btype != GGML_TYPE_F16 || Ctype != GGML_TYPE_F32) {
        return false;
    }
    float b[COLUMNS * LONGEST];
    const int64_t end = m * (params->ith + 1) / params->nth;
    for (int64_t first = m * params->ith / params->nth; first < end; first += ROWS) {
        const int64_t last = MIN(first + ROWS, end);
        for (int64_t column = 0; column < n; column += COLUMNS) {
            const int columns = (int) MIN(COLUMNS, n - column);
            for (int i = 0; i < columns; i++) {
                ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) B + (column + i) * ldb, b + i * LONGEST, k);
            }
            for (int64_t row = first; row < last; row++) {
                const ggml_fp16_t * a = (const ggml_fp16_t *) A + row * lda;
                float * c = (float *) C + column * ldc + row;
                switch (columns) { /* constants, so that the sums stay in registers */
                    case 1: dots(1, (int) k, a, b, c, ldc); break;
                    case 2: dots(2, (int) k, a, b, c, ldc); break;
                    case 3: dots(3, (int) k, a, b, c, ldc); break;
#ifdef __AVX512F__
                    case 4: dots(4, (int) k, a, b, c, ldc); break;
                    case 5: dots(5, (int) k, a, b, c, ldc); break;
                    case 6: dots(6, (int) k, a, b, c, ldc); break;
#endif
                }
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
