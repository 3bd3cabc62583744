/* Kernels for ARM with NEON, included by kernels.c, which says what they are.

   They have the bits of ggml's kernels for single rows (arch/arm/quants.c, vec.cpp). Sums of whole numbers are exact in
   any order. But compilers differ in whether they round a product and a sum of floats once or twice, so floats are
   computed with ggml's own intrinsics and expressions, which the same compiler treats alike. */
#include <arm_neon.h>

#define TALL 2

/* With SVE, ggml adds up Q4_0, Q8_0, Q2_K and F16 in as many sums as the processor's vectors have. */
#ifdef __ARM_FEATURE_SVE
#include <arm_sve.h>
#define HAS_SVE 1
#define BYTES_OF_VECTOR ((int) svcntb())
#else
#define HAS_SVE 0
#define BYTES_OF_VECTOR 16
#endif

/* True for types whose kernels with SVE are followed here, for vectors of up to 32 bytes. */
INLINE bool has_sve_order(int type) {
    return HAS_SVE && (type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q8_0);
}

/* False for what ggml adds up in floats, in more sums than there are here. */
INLINE bool follows_ggml(int type) {
    return !(HAS_SVE && (type == GGML_TYPE_Q2_K || type == GGML_TYPE_F16)) &&
           !(has_sve_order(type) && BYTES_OF_VECTOR > 32);
}

/* True for types that ggml adds up in two sums, of the even and of the odd blocks, or two blocks at once. */
INLINE bool sums_pairs(int type) {
    return is_of_32(type);
}

/* Single columns are left to ggml: whether the kernels here are faster was not measured. */
INLINE bool is_fast_alone(int type, int64_t k) {
    (void) type, (void) k;
    return true;
}

/* As ggml_vec_dot_f16 adds up rows: in four sums each. Those of all columns of a row stay in registers. */
INLINE void tile_of_f16(int tall, int broad, int k, const char * a, size_t nb_a, const char * const * b,
                        float * const * c, int64_t row) {
#if !HAS_SVE
    const int np = k & ~(GGML_F16_DOT_STEP - 1);
    for (int i = 0; i < tall; i++) {
        const ggml_fp16_t * ai = (const ggml_fp16_t *) (a + i * nb_a);
        GGML_F16_DOT_VEC sums[BROAD][GGML_F16_DOT_ARR];
        for (int j = 0; j < broad; j++) {
            for (int n = 0; n < GGML_F16_DOT_ARR; n++) {
                sums[j][n] = GGML_F16_DOT_VEC_ZERO;
            }
        }
        for (int start = 0; start < np; start += GGML_F16_DOT_STEP) {
            for (int n = 0; n < GGML_F16_DOT_ARR; n++) {
                const int at = start + n * GGML_F16_DOT_EPR;
                const GGML_F16_DOT_VEC ax = GGML_F16_DOT_VEC_LOAD(ai + at, n);
                for (int j = 0; j < broad; j++) {
                    const GGML_F16_DOT_VEC bx = GGML_F16_DOT_VEC_LOAD((const ggml_fp16_t *) b[j] + at, n);
                    sums[j][n] = GGML_F16_DOT_VEC_FMA(sums[j][n], ax, bx);
                }
            }
        }
        for (int j = 0; j < broad; j++) {
            GGML_F16_DOT_VEC of[GGML_F16_DOT_ARR]; /* a copy: an array whose address is taken is not in registers */
            for (int n = 0; n < GGML_F16_DOT_ARR; n++) {
                of[n] = sums[j][n];
            }
            ggml_float sum = 0.0;
            GGML_F16_DOT_VEC_REDUCE(sum, of);
            for (int at = np; at < k; at++) {
                sum += (ggml_float) (GGML_CPU_FP16_TO_FP32(ai[at]) *
                                     GGML_CPU_FP16_TO_FP32(((const ggml_fp16_t *) b[j])[at]));
            }
            c[j][row + i] = (float) sum;
        }
    }
#else
    (void) tall, (void) broad, (void) k, (void) a, (void) nb_a, (void) b, (void) c, (void) row;
#endif
}

INLINE int8x16x2_t loaded(const void * qs) {
    return (int8x16x2_t) {{vld1q_s8(qs), vld1q_s8((const int8_t *) qs + 16)}};
}

INLINE int8x16_t signed_bytes(uint8x16_t bytes) {
    return vreinterpretq_s8_u8(bytes);
}

/* Bits of each byte, moved to the right (left if negative). */
INLINE uint8x16_t moved(uint8x16_t bits, int by, int mask) {
    return vandq_u8(vshlq_u8(bits, vdupq_n_s8((int8_t) -by)), vdupq_n_u8((uint8_t) mask));
}

INLINE int8x16x2_t nibbles(const uint8_t * qs) {
    const uint8x16_t packed = vld1q_u8(qs);
    return (int8x16x2_t) {{signed_bytes(vandq_u8(packed, vdupq_n_u8(0xF))), signed_bytes(vshrq_n_u8(packed, 4))}};
}

INLINE int8x16x2_t looked_up(const uint8_t * qs, const int8_t * values) {
    const int8x16_t table = vld1q_s8(values);
    const int8x16x2_t places = nibbles(qs);
    return (int8x16x2_t) {{vqtbl1q_s8(table, vreinterpretq_u8_s8(places.val[0])),
                           vqtbl1q_s8(table, vreinterpretq_u8_s8(places.val[1]))}};
}

/* 16 elements with their fifth bits, which are in the two bytes at `qh`, less `less`. */
INLINE int8x16_t with_fifth_bits(int8x16_t nibbles, const uint8_t * qh, int less) {
    const uint8x8_t each = vcreate_u8(0x8040201008040201);
    const uint8x16_t bytes = vcombine_u8(vdup_n_u8(qh[0]), vdup_n_u8(qh[1]));
    const uint8x16_t fifth = vandq_u8(vtstq_u8(bytes, vcombine_u8(each, each)), vdupq_n_u8(16));
    return vsubq_s8(vorrq_s8(nibbles, signed_bytes(fifth)), vdupq_n_s8((int8_t) less));
}

/* The 32 elements of a block, without its scale. */
INLINE int8x16x2_t unpacked(int type, const char * block) {
    int8x16x2_t x;
    switch (type) {
        case GGML_TYPE_Q4_0:
            x = nibbles(((const block_q4_0 *) block)->qs);
            return (int8x16x2_t) {{vsubq_s8(x.val[0], vdupq_n_s8(8)), vsubq_s8(x.val[1], vdupq_n_s8(8))}};
        case GGML_TYPE_Q4_1:
            return nibbles(((const block_q4_1 *) block)->qs);
        case GGML_TYPE_Q5_0: {
            const block_q5_0 * five = (const block_q5_0 *) block;
            x = nibbles(five->qs);
            return (int8x16x2_t) {{with_fifth_bits(x.val[0], five->qh, 16),
                                   with_fifth_bits(x.val[1], five->qh + 2, 16)}};
        }
        case GGML_TYPE_Q5_1: {
            const block_q5_1 * five = (const block_q5_1 *) block;
            x = nibbles(five->qs);
            return (int8x16x2_t) {{with_fifth_bits(x.val[0], five->qh, 0),
                                   with_fifth_bits(x.val[1], five->qh + 2, 0)}};
        }
        case GGML_TYPE_IQ4_NL:
            return looked_up(((const block_iq4_nl *) block)->qs, kvalues_iq4nl);
        case GGML_TYPE_MXFP4:
            return looked_up(((const block_mxfp4 *) block)->qs, kvalues_mxfp4);
        default:
            return loaded(((const block_q8_0 *) block)->qs);
    }
}

/* Blocks of 32 elements: their bytes are unpacked once for all columns. */

/* Four products of a block in each of four sums, with the elements of A and B in two registers each. */
INLINE int32x4_t products(int8x16x2_t a, int8x16x2_t b) {
    return ggml_vdotq_s32(ggml_vdotq_s32(vdupq_n_s32(0), a.val[0], b.val[0]), a.val[1], b.val[1]);
}

/* The scales of a block of A, times those of each column. */
INLINE float32x4_t scales_of(int type, const char * a, const columns_of_32 * b, int block) {
    return vmulq_n_f32(vld1q_f32(b->scales[block]), scale_of(type, a));
}

/* Every second block, from `first` on. Each element of `sums` gets the scaled products of a row and a column: in four
   sums, or in the eight of a wide vector. */
INLINE void add_blocks(int type, int tall, int broad, bool is_wide, int first, int blocks, const char * a, size_t nb_a,
                       const columns_of_32 * b, float32x4_t (*sums)[BROAD][2]) {
    const size_t size = size_of_block(type);
    float32x4_t sum[TALL][BROAD][2]; /* in registers */
    for (int i = 0; i < tall; i++) {
        for (int j = 0; j < broad; j++) {
            sum[i][j][0] = sum[i][j][1] = vdupq_n_f32(0.0f);
        }
    }
    for (int block = first; block < blocks; block += 2) {
        int8x16x2_t ax[TALL];
        float32x4_t d[TALL];
        for (int i = 0; i < tall; i++) {
            const char * one = a + i * nb_a + block * size;
            ax[i] = unpacked(type, one);
            d[i] = scales_of(type, one, b, block);
        }
        for (int j = 0; j < broad; j++) {
            const int8x16x2_t bx = loaded(b->bytes[j] + block * b->size);
            for (int i = 0; i < tall; i++) {
                if (is_wide) {
                    for (int half = 0; half < 2; half++) {
                        const int32x4_t four = ggml_vdotq_s32(vdupq_n_s32(0), ax[i].val[half], bx.val[half]);
                        sum[i][j][half] = vfmaq_n_f32(sum[i][j][half], vcvtq_f32_s32(four), d[i][j]);
                    }
                } else if (has_sve_order(type)) {
                    sum[i][j][0] = vfmaq_n_f32(sum[i][j][0], vcvtq_f32_s32(products(ax[i], bx)), d[i][j]);
                } else {
                    sum[i][j][0] = vmlaq_n_f32(sum[i][j][0], vcvtq_f32_s32(products(ax[i], bx)), d[i][j]);
                }
            }
        }
    }
    for (int i = 0; i < tall; i++) {
        for (int j = 0; j < broad; j++) {
            sums[i][j][0] = sum[i][j][0];
            sums[i][j][1] = sum[i][j][1];
        }
    }
}

/* The sums of a row's least values, times those of each column's elements. */
INLINE float32x4_t least_sums(int type, int blocks, const char * a, const columns_of_32 * b, float32x4_t sums) {
    const size_t size = size_of_block(type);
    float32x4_t even = vdupq_n_f32(0.0f), odd = vdupq_n_f32(0.0f);
    for (int block = 0; block < blocks; block += 2) {
        const float32x4_t first = vdupq_n_f32(least_of(a + block * size));
        const float32x4_t second = vdupq_n_f32(least_of(a + (block + 1) * size));
        const float32x4_t first_b = vld1q_f32(b->sums[block]), second_b = vld1q_f32(b->sums[block + 1]);
        if (type == GGML_TYPE_Q4_1) {
            even += first * first_b + second * second_b;
        } else {
            even += first * first_b;
            odd += second * second_b;
        }
    }
    return type == GGML_TYPE_Q4_1 ? sums + even : sums + even + odd;
}

/* Types whose even and odd blocks ggml adds up apart. */
INLINE void tile_of_sums(int type, int tall, int broad, bool is_wide, int blocks, const char * a, size_t nb_a,
                         const columns_of_32 * b, float * const * c, int64_t row) {
    float32x4_t even[TALL][BROAD][2], odd[TALL][BROAD][2];
    add_blocks(type, tall, broad, is_wide, 0, blocks, a, nb_a, b, even);
    add_blocks(type, tall, broad, is_wide, 1, blocks, a, nb_a, b, odd);
    for (int i = 0; i < tall; i++) {
        float32x4_t all = vdupq_n_f32(0.0f);
        for (int j = 0; j < broad; j++) {
            const float32x4_t * first = even[i][j], * second = odd[i][j];
            if (is_wide) {
                all[j] = vaddvq_f32(vaddq_f32(first[0], second[0])) + vaddvq_f32(vaddq_f32(first[1], second[1]));
            } else if (has_sve_order(type)) {
                all[j] = vaddvq_f32(vaddq_f32(first[0], second[0]));
            } else {
                all[j] = vaddvq_f32(first[0]) + vaddvq_f32(second[0]);
            }
        }
        if (has_least(type)) {
            all = least_sums(type, blocks, a + i * nb_a, b, all);
        }
        for (int j = 0; j < broad; j++) {
            c[j][row + i] = all[j];
        }
    }
}

/* IQ4_NL and MXFP4: ggml adds up each block, and then two blocks at once. */
INLINE void tile_of_pairs(int type, int tall, int broad, int blocks, const char * a, size_t nb_a,
                          const columns_of_32 * b, float * const * c, int64_t row) {
    const size_t size = size_of_block(type);
    float sums[TALL][BROAD];
    memset(sums, 0, sizeof(sums));
    for (int block = 0; block < blocks; block += 2) {
        int8x16x2_t ax[TALL][2];
        float32x4_t d[TALL][2];
        for (int i = 0; i < tall; i++) {
            for (int odd = 0; odd < 2; odd++) {
                const char * one = a + i * nb_a + (block + odd) * size;
                ax[i][odd] = unpacked(type, one);
                d[i][odd] = scales_of(type, one, b, block + odd);
            }
        }
        for (int j = 0; j < broad; j++) {
            const char * qs = b->bytes[j] + block * b->size;
            const int8x16x2_t first = loaded(qs), second = loaded(qs + b->size);
            for (int i = 0; i < tall; i++) {
                sums[i][j] += d[i][0][j] * vaddvq_s32(products(ax[i][0], first)) +
                              d[i][1][j] * vaddvq_s32(products(ax[i][1], second));
            }
        }
    }
    for (int j = 0; j < broad; j++) {
        for (int i = 0; i < tall; i++) {
            c[j][row + i] = sums[i][j];
        }
    }
}

INLINE void tile_of_32(int type, int tall, int broad, int blocks, const char * a, size_t nb_a, const columns_of_32 * b,
                       float * const * c, int64_t row) {
    if (type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4) {
        tile_of_pairs(type, tall, broad, blocks, a, nb_a, b, c, row);
    } else if (has_sve_order(type) && BYTES_OF_VECTOR == 32) {
        tile_of_sums(type, tall, broad, true, blocks, a, nb_a, b, c, row);
    } else {
        tile_of_sums(type, tall, broad, false, blocks, a, nb_a, b, c, row);
    }
}

/* K-quants and IQ4_XS: blocks of 256 elements, whose products ggml adds up as whole numbers. */

/* The scales of each 16 elements, and the numbers that are subtracted from each 16. */
typedef struct {
    int32_t scales[16];
    int16_t least[16];
} scales_of_256;

INLINE void unpack_scales_of_256(int type, const char * a, scales_of_256 * out) {
    switch (type) {
        case GGML_TYPE_Q2_K:
            for (int i = 0; i < 16; i++) {
                out->scales[i] = ((const block_q2_K *) a)->scales[i] & 0xF;
                out->least[i] = ((const block_q2_K *) a)->scales[i] >> 4;
            }
            break;
        case GGML_TYPE_Q3_K: {
            const uint8_t * packed = ((const block_q3_K *) a)->scales;
            for (int i = 0; i < 16; i++) {
                const int low = i < 8 ? packed[i] & 0xF : packed[i - 8] >> 4;
                out->scales[i] = (low | (packed[8 + i % 4] >> 2 * (i / 4) & 3) << 4) - 32;
            }
            break;
        }
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: { /* d, dmin and scales come first in both */
            union {
                uint32_t words[4];
                uint8_t bytes[16];
            } six;
            unpack_scales(((const block_q4_K *) a)->scales, six.words);
            for (int i = 0; i < 16; i++) {
                out->scales[i] = six.bytes[i / 2];
                out->least[i] = six.bytes[8 + i / 2];
            }
            break;
        }
        case GGML_TYPE_Q6_K: /* elements are 32 less */
            for (int i = 0; i < 16; i++) {
                out->scales[i] = out->least[i] = ((const block_q6_K *) a)->scales[i];
            }
            break;
        default: {
            const block_iq4_xs * x = (const block_iq4_xs *) a;
            for (int i = 0; i < 8; i++) {
                const int low = x->scales_l[i / 2] >> 4 * (i % 2) & 0xf, high = (x->scales_h >> 2 * i & 3) << 4;
                out->scales[2 * i] = out->scales[2 * i + 1] = (low | high) - 32;
            }
        }
    }
}

/* The 32 elements from 32 * `at` on, without their scales. */
INLINE int8x16x2_t unpacked_of_256(int type, const char * a, int at) {
    const int half = at / 4, quarter = at % 4;
    int8x16x2_t x;
    for (int i = 0; i < 2; i++) {
        switch (type) {
            case GGML_TYPE_Q2_K: {
                const uint8x16_t bits = vld1q_u8(((const block_q2_K *) a)->qs + 32 * half + 16 * i);
                x.val[i] = signed_bytes(moved(bits, 2 * quarter, 3));
                break;
            }
            case GGML_TYPE_Q3_K: {
                const block_q3_K * three = (const block_q3_K *) a;
                const uint8x16_t bits = moved(vld1q_u8(three->qs + 32 * half + 16 * i), 2 * quarter, 3);
                const uint8x16_t third = moved(vld1q_u8(three->hmask + 16 * i), at - 2, 4); /* of 1 << at */
                x.val[i] = vsubq_s8(signed_bytes(vorrq_u8(bits, third)), vdupq_n_s8(4));
                break;
            }
            case GGML_TYPE_Q4_K: {
                const uint8x16_t bits = vld1q_u8(((const block_q4_K *) a)->qs + 32 * (at / 2) + 16 * i);
                x.val[i] = signed_bytes(moved(bits, 4 * (at % 2), 0xF));
                break;
            }
            case GGML_TYPE_Q5_K: {
                const block_q5_K * five = (const block_q5_K *) a;
                const uint8x16_t bits = moved(vld1q_u8(five->qs + 32 * (at / 2) + 16 * i), 4 * (at % 2), 0xF);
                x.val[i] = signed_bytes(vorrq_u8(bits, moved(vld1q_u8(five->qh + 16 * i), at - 4, 16)));
                break;
            }
            case GGML_TYPE_Q6_K: {
                const block_q6_K * six = (const block_q6_K *) a;
                const uint8x16_t bits = vld1q_u8(six->ql + 64 * half + 32 * (quarter % 2) + 16 * i);
                const uint8x16_t top = moved(vld1q_u8(six->qh + 32 * half + 16 * i), 2 * quarter - 4, 0x30);
                x.val[i] = signed_bytes(vorrq_u8(moved(bits, 4 * (quarter / 2), 0xF), top));
                break;
            }
            default:
                return looked_up(((const block_iq4_xs *) a)->qs + 16 * at, kvalues_iq4nl);
        }
    }
    return x;
}

/* Adds a block to the sum of a row and a column. */
INLINE float plus_block(int type, float sum, const char * a, const block_q8_K * b, int whole, int least) {
    switch (type) {
        case GGML_TYPE_Q2_K: {
            const block_q2_K * x = (const block_q2_K *) a;
            const float d = b->d * GGML_CPU_FP16_TO_FP32(x->d);
            const float dmin = -b->d * GGML_CPU_FP16_TO_FP32(x->dmin);
            sum += dmin * least;
            sum += d * whole;
            return sum;
        }
        case GGML_TYPE_Q3_K: {
            const float d = b->d * GGML_CPU_FP16_TO_FP32(((const block_q3_K *) a)->d);
            sum += d * whole;
            return sum;
        }
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: {
            const block_q4_K * x = (const block_q4_K *) a;
            const float d = b->d * GGML_CPU_FP16_TO_FP32(x->d);
            const float dmin = b->d * GGML_CPU_FP16_TO_FP32(x->dmin);
            if (type == GGML_TYPE_Q4_K) {
                sum -= dmin * least;
                sum += d * whole;
            } else {
                sum += d * whole - dmin * least;
            }
            return sum;
        }
        case GGML_TYPE_Q6_K: {
            const float d_all = GGML_CPU_FP16_TO_FP32(((const block_q6_K *) a)->d);
            sum += d_all * b->d * (whole - 32 * least);
            return sum;
        }
        default:
            sum += GGML_CPU_FP16_TO_FP32(((const block_iq4_xs *) a)->d) * b->d * whole;
            return sum;
    }
}

/* The sum of each 16 elements of B, times a number. */
INLINE int least_sum(const int16_t * sums, const int16_t * least) {
    int32x4_t all = vdupq_n_s32(0);
    for (int i = 0; i < 16; i += 4) {
        all = vmlal_s16(all, vld1_s16(sums + i), vld1_s16(least + i));
    }
    return vaddvq_s32(all);
}

#define MOST_OF_256 INT_MAX /* blocks of all columns together: there is no limit */

typedef struct {
    const block_q8_K * at[BROAD];
} columns_of_256;

INLINE void convert_of_256(int type, columns_of_256 * b, int broad, int blocks, const char * const * columns) {
    (void) type, (void) blocks; /* they are read as they are */
    for (int j = 0; j < broad; j++) {
        b->at[j] = (const block_q8_K *) columns[j];
    }
}

INLINE void row_of_256(int type, int broad, int blocks, const char * a, const columns_of_256 * b, float * const * c,
                       int64_t row) {
    const bool has_16 = type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q3_K || type == GGML_TYPE_Q6_K; /* to a scale */
    const bool has_minima = type != GGML_TYPE_Q3_K && type != GGML_TYPE_IQ4_XS;
    float sums[BROAD];
    for (int j = 0; j < broad; j++) {
        sums[j] = 0;
    }
    for (int block = 0; block < blocks; block++, a += size_of_256(type)) {
        scales_of_256 of;
        unpack_scales_of_256(type, a, &of);
        int32x4_t whole[BROAD][2]; /* two sums, because one would wait for itself */
        for (int j = 0; j < broad; j++) {
            whole[j][0] = whole[j][1] = vdupq_n_s32(0);
        }
#ifndef __clang__
#pragma GCC unroll 1 /* GCC would unroll it fourfold, and then keep fewer numbers in registers */
#endif
        for (int at = 0; at < QK_K / 32; at += 2) {
            for (int odd = 0; odd < 2; odd++) {
                const int8x16x2_t ax = unpacked_of_256(type, a, at + odd);
                const int32_t * scales = of.scales + 2 * (at + odd);
                for (int j = 0; j < broad; j++) {
                    const int8x16x2_t bx = loaded(b->at[j][block].qs + 32 * (at + odd));
                    if (has_16) {
                        for (int i = 0; i < 2; i++) {
                            const int32x4_t four = ggml_vdotq_s32(vdupq_n_s32(0), ax.val[i], bx.val[i]);
                            whole[j][i] = vmlaq_n_s32(whole[j][i], four, scales[i]);
                        }
                    } else {
                        whole[j][odd] = vmlaq_n_s32(whole[j][odd], products(ax, bx), scales[0]);
                    }
                }
            }
        }
        for (int j = 0; j < broad; j++) {
            const int least = has_minima ? least_sum(b->at[j][block].bsums, of.least) : 0;
            const int all = vaddvq_s32(vaddq_s32(whole[j][0], whole[j][1]));
            sums[j] = plus_block(type, sums[j], a, &b->at[j][block], all, least);
        }
    }
    for (int j = 0; j < broad; j++) {
        c[j][row] = sums[j];
    }
}
