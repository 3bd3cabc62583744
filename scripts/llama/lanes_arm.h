/* Vectors of NEON, one row of weights in each lane of 32 bits: for ARM what lanes_x86.h is for x86. A vector here is
   two of the processor, so that loaded activations and scales are used twice. */

#define UNSIGNED_ONLY 0

enum { ROWS = 8 };
struct F {
    float32x4_t low, high;
};
struct I {
    int32x4_t low, high;
};
typedef uint8x8_t S; /* a byte for each row */
typedef uint32_t M; /* a bit for each byte of a vector */

static inline void prefetch(const void * p) { __builtin_prefetch(p); }

static inline I load(const void * p) {
    const uint8_t * at = (const uint8_t *) p;
    return {(int32x4_t) vld1q_u8(at), (int32x4_t) vld1q_u8(at + 16)};
}
static inline void store_ints(void * p, I x) { memcpy(p, &x, sizeof(x)); }
static inline I ints(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
static inline F floats(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
static inline F load_floats(const float * p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
static inline void store(float * p, F x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
}
static inline F fma(F a, F b, F c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
static inline F less(F a, F b, F c) { /* c - a * b */
    return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
}
static inline F mul(F a, F b) { return {a.low * b.low, a.high * b.high}; }
static inline F minus(F a, F b) { return {a.low - b.low, a.high - b.high}; }
static inline F add(F a, F b) { return {a.low + b.low, a.high + b.high}; }
static inline F larger(F a, F b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
static inline float largest_of(F a) { return vmaxvq_f32(vmaxq_f32(a.low, a.high)); }
static inline F to_floats(I x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
static inline F as_floats(I x) { return {(float32x4_t) x.low, (float32x4_t) x.high}; }
static inline F widened_halves(uint16x8_t x) {
    return {vcvt_f32_f16(vget_low_f16((float16x8_t) x)), vcvt_high_f32_f16((float16x8_t) x)};
}
static inline F halves(const void * p) { return widened_halves(vld1q_u16((const uint16_t *) p)); }
static inline F eights(const void * p) { return widened_halves(vshll_n_u8(vld1_u8((const uint8_t *) p), 7)); }
static inline I widened_words(uint16x8_t x) {
    return {(int32x4_t) vmovl_u16(vget_low_u16(x)), (int32x4_t) vmovl_high_u16(x)};
}
static inline I words(const void * p) { return widened_words(vld1q_u16((const uint16_t *) p)); }
static inline S bytes(const void * p) { return vld1_u8((const uint8_t *) p); }
static inline I widened(S x) { return widened_words(vmovl_u8(x)); }
static inline I widened_signed(S x) {
    const int16x8_t y = vmovl_s8((int8x8_t) x);
    return {vmovl_s16(vget_low_s16(y)), vmovl_high_s16(y)};
}
static inline S low_of(S x) { return x & 15; }
static inline S high_of(S x) { return x >> 4; }
static inline S nibbles(M x) { /* a nibble of each row */
    const S of = (S) vdup_n_u32(x);
    return vzip1_u8(low_of(of), high_of(of));
}
template <int N> static inline I up(I x) { return {vshlq_n_s32(x.low, N), vshlq_n_s32(x.high, N)}; }
template <int N> static inline I down(I x) {
    return {(int32x4_t) ((uint32x4_t) x.low >> N), (int32x4_t) ((uint32x4_t) x.high >> N)};
}
static inline I masked(I x, int32_t mask) { return {x.low & mask, x.high & mask}; }
static inline int32x4_t gathered(const uint32_t * table, int32x4_t at) {
    return (int32x4_t) (uint32x4_t) {table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
}
static inline I gathered(const uint32_t * table, I at) { return {gathered(table, at.low), gathered(table, at.high)}; }
static inline int32x4_t plus_or_minus(int32x4_t a, int32x4_t b, M minus) {
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t is_minus =
        vtstq_u8(vcombine_u8(vdup_n_u8((uint8_t) minus), vdup_n_u8((uint8_t) (minus >> 8))), bit);
    return (int32x4_t) ((uint8x16_t) a + ((uint8x16_t) b ^ is_minus) - is_minus);
}
/* The sums of bytes, or their differences where a bit is set. */
static inline I plus_or_minus(I a, I b, M minus) {
    return {plus_or_minus(a.low, b.low, minus), plus_or_minus(a.high, b.high, minus >> 16)};
}
template <int N> static inline int32x4_t bits_of(int32x4_t x, int mask) {
    constexpr int RIGHT = N > 0 ? N : 0, LEFT = N < 0 ? -N : 0;
    const uint8x16_t moved = (uint8x16_t) x >> RIGHT << LEFT;
    return (int32x4_t) (mask == 255 >> RIGHT ? moved : moved & (uint8_t) mask);
}
/* Some bits of each byte, moved by N to the right (or to the left). */
template <int N> static inline I bits(I x, int mask) { return {bits_of<N>(x.low, mask), bits_of<N>(x.high, mask)}; }
static inline I both(I a, I b) { return {a.low | b.low, a.high | b.high}; }
/* Of 32 bytes of each row, which follow each other, eight vectors with four of each row. */
static inline void transpose(const void * rows, I * to) {
    for (int i = 0; i < 8; i += 4) {
        const int32_t * row = (const int32_t *) rows + i;
        int32x4_t of[2][4];
        for (int j = 0; j < 2; j++, row += 32) {
            const int32x4_t a = vld1q_s32(row), b = vld1q_s32(row + 8), c = vld1q_s32(row + 16),
                            d = vld1q_s32(row + 24);
            const int64x2_t low = (int64x2_t) vzip1q_s32(a, b), high = (int64x2_t) vzip2q_s32(a, b);
            const int64x2_t next_low = (int64x2_t) vzip1q_s32(c, d), next_high = (int64x2_t) vzip2q_s32(c, d);
            of[j][0] = (int32x4_t) vzip1q_s64(low, next_low);
            of[j][1] = (int32x4_t) vzip2q_s64(low, next_low);
            of[j][2] = (int32x4_t) vzip1q_s64(high, next_high);
            of[j][3] = (int32x4_t) vzip2q_s64(high, next_high);
        }
        for (int j = 0; j < 4; j++) {
            to[i + j] = {of[0][j], of[1][j]};
        }
    }
}
/* Stores the lower words of all lanes, then the higher ones. */
static inline void store_words(void * p, I x) {
    const int16x8_t low = (int16x8_t) x.low, high = (int16x8_t) x.high;
    store_ints(p, {(int32x4_t) vuzp1q_s16(low, high), (int32x4_t) vuzp2q_s16(low, high)});
}
static inline I looked_up(I x, const int8_t * table) {
    const int8x16_t of = vld1q_s8(table);
    return {(int32x4_t) vqtbl1q_s8(of, (uint8x16_t) x.low), (int32x4_t) vqtbl1q_s8(of, (uint8x16_t) x.high)};
}

/* The sum of the lanes of each vector. */
static inline F sums_of(const F * of) {
    float32x4_t two[4];
    for (int i = 0; i < 4; i++) {
        two[i] = vpaddq_f32(of[2 * i].low + of[2 * i].high, of[2 * i + 1].low + of[2 * i + 1].high);
    }
    return {vpaddq_f32(two[0], two[1]), vpaddq_f32(two[2], two[3])};
}

#ifdef __ARM_FEATURE_DOTPROD
template <int BITS> static inline int32x4_t dot(int32x4_t sum, const int32x4_t (&w)[4], int8x16_t a) {
    sum = vdotq_laneq_s32(sum, (int8x16_t) w[0], a, 0);
    sum = vdotq_laneq_s32(sum, (int8x16_t) w[1], a, 1);
    sum = vdotq_laneq_s32(sum, (int8x16_t) w[2], a, 2);
    return vdotq_laneq_s32(sum, (int8x16_t) w[3], a, 3);
}
#else
/* Products are added up in 16 bits as long as they fit: those of 5 bits eight at a time, of 8 bits two. */
template <int BITS> static inline int32x4_t dot(int32x4_t sum, const int32x4_t (&w)[4], int8x16_t a) {
    enum { FIT = BITS <= 5 ? 4 : BITS == 6 ? 2 : 1 };
    const int32x2_t of[4] = {vdup_laneq_s32((int32x4_t) a, 0), vdup_laneq_s32((int32x4_t) a, 1),
                             vdup_laneq_s32((int32x4_t) a, 2), vdup_laneq_s32((int32x4_t) a, 3)};
    UNROLLED
    for (int i = 0; i < 4; i += FIT) {
        int16x8_t low = vdupq_n_s16(0), high = low;
        UNROLLED
        for (int j = i; j < i + FIT; j++) {
            low = vmlal_s8(low, vget_low_s8((int8x16_t) w[j]), (int8x8_t) of[j]);
            high = vmlal_s8(high, vget_high_s8((int8x16_t) w[j]), (int8x8_t) of[j]);
        }
        sum = vpadalq_s16(sum, vpaddq_s16(low, high));
    }
    return sum;
}
#endif

/* Adds the products of four vectors of weights and 16 activations. Weights of 8 bits are signed. */
template <int BITS> static inline I products(I sum, const I * w, const int8_t * a) {
    const int8x16_t of = vld1q_s8(a);
    return {dot<BITS>(sum.low, {w[0].low, w[1].low, w[2].low, w[3].low}, of),
            dot<BITS>(sum.high, {w[0].high, w[1].high, w[2].high, w[3].high}, of)};
}

/* A bit for each of 16 numbers, which is set if it is not this one. */
static inline uint32_t unequal(const uint16_t * of, uint16_t to) {
    const uint16x8_t bit = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t low = vceqq_u16(vld1q_u16(of), vdupq_n_u16(to));
    const uint16x8_t high = vceqq_u16(vld1q_u16(of + 8), vdupq_n_u16(to));
    return vaddvq_u16(vbicq_u16(bit, low)) | (uint32_t) vaddvq_u16(vbicq_u16(bit, high)) << 8;
}

/* Exponentials of numbers up to 0, with the bits of ggml_v_expf, which is another function where there is SVE. */
static inline float32x4_t exponentials(float32x4_t x) {
    const float32x4_t r = vdupq_n_f32(0x1.8p23f), z = vfmaq_n_f32(r, x, 0x1.715476p+0f), n = z - r;
    const float32x4_t b = vfmsq_n_f32(vfmsq_n_f32(x, n, 0x1.62e4p-1f), n, 0x1.7f7d1cp-20f), u = b * b;
    const float32x4_t first = vfmaq_n_f32(vdupq_n_f32(0x1.fffdb6p-2f), b, 0x1.555e66p-3f);
    const float32x4_t second = vfmaq_n_f32(vdupq_n_f32(0x1.573e2ep-5f), b, 0x1.0e4020p-7f);
    const float32x4_t j = vfmaq_f32(vmulq_n_f32(b, 0x1.ffffecp-1f), vfmaq_f32(first, second, u), u);
    const uint32x4_t is_small = vcltq_f32(n, vdupq_n_f32(-126)); /* then 2^125 times too large at first */
    const uint32x4_t power = vshlq_n_u32((uint32x4_t) z, 23) + 0x3f800000 + (is_small & 0x3e800000);
    const float32x4_t y = vfmaq_f32((float32x4_t) power, (float32x4_t) power, j);
    const float32x4_t all = vbslq_f32(is_small, vmulq_n_f32(y, 0x1p-125f), y);
    return (float32x4_t) vbicq_u32((uint32x4_t) all, vcltq_f32(n, vdupq_n_f32(-192)));
}
static inline F ggml_v_expf(F x) { return {exponentials(x.low), exponentials(x.high)}; }

/* Rounds as in lanes_x86.h. No test for NaN is needed: the largest number is NaN if there is one. */
static inline float round_32(const float * x, int8_t * to, int32_t * sums) {
    float32x4_t of[8], most = vdupq_n_f32(0);
    for (int i = 0; i < 8; i++) {
        of[i] = vld1q_f32(x + 4 * i);
        most = vmaxq_f32(most, vabsq_f32(of[i]));
    }
    float size = vmaxvq_f32(most);
    size = size < 1e-30f ? 0 : size; /* its inverse would be infinite */
    const float inverse = size > 0 ? 127 / size : 0;
    for (int half = 0; half < 2; half++) {
        int32x4_t whole[4];
        for (int i = 0; i < 4; i++) {
            whole[i] = vcvtnq_s32_f32(vmulq_n_f32(of[4 * half + i], inverse));
        }
        const int16x8_t low = vcombine_s16(vmovn_s32(whole[0]), vmovn_s32(whole[1]));
        const int16x8_t high = vcombine_s16(vmovn_s32(whole[2]), vmovn_s32(whole[3]));
        vst1q_s8(to + 16 * half, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        sums[half] = vaddvq_s32(whole[0] + whole[1] + whole[2] + whole[3]);
    }
    return size / 127;
}
