/* Kernels for AVX2 and AVX-512, included by kernels.c, which says what they are. */
#include <immintrin.h>

/* Bytes between a read and its prefetch. Kernels prefetch where the processor does not see that weights are read in the
   order of memory: where reads jump from row to row, or alternate with reads of columns that do not fit into the L1
   cache. Much of what is prefetched from further away belongs to another thread's chunk; but a tile of F16 has longer
   rows, and is read four times. */
#define AHEAD 8192
#define AHEAD_F16 16384
#define SEGMENT 1024  /* elements of a row: those of all columns stay in the L1 cache */
#define LONG_ROW 1024 /* bytes: ggml is as fast for single columns of rows of at least this size */

/* FOURS adds the products of four unsigned bytes of `a` and signed ones of `b` to each 32 bits of `sum`; PAIRS adds the
   products of two numbers of 16 bits. */
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define TALL 4
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

/* True for types that ggml adds up in two sums, of the even and of the odd blocks. */
INLINE bool sums_pairs(int type) {
    return type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

/* True for single columns that ggml computes as fast or faster, because it reads one row after the other. */
INLINE bool is_fast_alone(int type, int64_t k) {
    const bool is_simple = type == GGML_TYPE_Q8_0 || type == GGML_TYPE_F16;
    return is_simple && ggml_row_size((enum ggml_type) type, k) >= LONG_ROW;
}

/* All types are added up as ggml does. */
INLINE bool follows_ggml(int type) {
    (void) type;
    return true;
}

/* F16: ggml_vec_dot_f16 adds up a row in four sums, each of every fourth vector. Here these sums are made one after the
   other, so that those of all rows and columns stay in registers. */

/* Four rows: the sum of the elements of each, in ggml's order. */
#ifdef __AVX512F__
#define ADD _mm512_add_ps
INLINE __m128 sums_of_four(const GGML_F16_DOT_VEC * of) {
    const __m512 ab = ADD(_mm512_shuffle_f32x4(of[0], of[1], 0x44), _mm512_shuffle_f32x4(of[0], of[1], 0xEE));
    const __m512 cd = ADD(_mm512_shuffle_f32x4(of[2], of[3], 0x44), _mm512_shuffle_f32x4(of[2], of[3], 0xEE));
    __m512 sums = ADD(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD)); /* four of each row */
    sums = ADD(sums, _mm512_shuffle_ps(sums, sums, 0x4E));
    sums = ADD(sums, _mm512_shuffle_ps(sums, sums, 0xB1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, sums));
}
#else
#define ADD _mm256_add_ps
INLINE __m128 halves(__m256 sums) {
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}
INLINE __m128 sums_of_four(const GGML_F16_DOT_VEC * of) {
    return _mm_hadd_ps(_mm_hadd_ps(halves(of[0]), halves(of[1])), _mm_hadd_ps(halves(of[2]), halves(of[3])));
}
#endif

_Static_assert(GGML_F16_DOT_ARR == 4, "ggml adds up F16 in another number of sums");

typedef GGML_F16_DOT_VEC tile_sums[BROAD][TALL];

#define EACH(expression)                                                                                               \
    for (int j = 0; j < broad; j++) {                                                                                  \
        for (int i = 0; i < tall; i++) {                                                                               \
            expression;                                                                                                \
        }                                                                                                              \
    }

/* The next address to prefetch. Addresses are in the order of memory, although the reads jump from row to row. */
typedef struct {
    const char * at;
    int left; /* bytes of the row */
} fetched;

INLINE fetched fetch(fetched ahead, int size, size_t nb_a) {
    _mm_prefetch(ahead.at, _MM_HINT_T1);
    ahead.at += 64;
    ahead.left -= 64;
    if (ahead.left <= 0) {
        ahead.at += (ptrdiff_t) nb_a - (size + 63) / 64 * 64;
        ahead.left = size;
    }
    return ahead;
}

/* Adds the products of every fourth vector from `start` to `end` to the sums of a tile. */
INLINE fetched add_f16(int tall, int broad, int k, int start, int end, const char * a, size_t nb_a,
                       const char * const * b, fetched ahead, tile_sums sums) {
    for (int at = start; at < end; at += GGML_F16_DOT_STEP) {
        GGML_F16_DOT_VEC ax[TALL];
        for (int of = 0; of < tall * GGML_F16_DOT_EPR * 2; of += 64) {
            ahead = fetch(ahead, k * sizeof(ggml_fp16_t), nb_a);
        }
        for (int i = 0; i < tall; i++) {
            ax[i] = GGML_F16_DOT_VEC_LOAD(a + i * nb_a + at * sizeof(ggml_fp16_t), 0);
        }
        for (int j = 0; j < broad; j++) {
            const GGML_F16_DOT_VEC bx = GGML_F16_DOT_VEC_LOAD(b[j] + at * sizeof(ggml_fp16_t), 0);
            for (int i = 0; i < tall; i++) {
                sums[j][i] = GGML_F16_DOT_VEC_FMA(sums[j][i], ax[i], bx);
            }
        }
    }
    return ahead;
}

INLINE void tile_of_f16(int tall, int broad, int k, const char * a, size_t nb_a, const char * const * b,
                        float * const * c, int64_t row) {
    const int np = k & ~(GGML_F16_DOT_STEP - 1), apart = GGML_F16_DOT_EPR;
    fetched ahead = {a + MAX(1, AHEAD_F16 / (TALL * nb_a)) * (TALL * nb_a), k * sizeof(ggml_fp16_t)};
    tile_sums even, odd, sums;
    if (np <= SEGMENT) { /* the usual case in attention: all sums stay in registers */
        EACH(even[j][i] = GGML_F16_DOT_VEC_ZERO);
        ahead = add_f16(tall, broad, k, 0 * apart, np, a, nb_a, b, ahead, even);
        EACH(sums[j][i] = GGML_F16_DOT_VEC_ZERO);
        ahead = add_f16(tall, broad, k, 2 * apart, np, a, nb_a, b, ahead, sums);
        EACH(even[j][i] = ADD(even[j][i], sums[j][i]));
        EACH(odd[j][i] = GGML_F16_DOT_VEC_ZERO);
        ahead = add_f16(tall, broad, k, 1 * apart, np, a, nb_a, b, ahead, odd);
        EACH(sums[j][i] = GGML_F16_DOT_VEC_ZERO);
        ahead = add_f16(tall, broad, k, 3 * apart, np, a, nb_a, b, ahead, sums);
        EACH(odd[j][i] = ADD(odd[j][i], sums[j][i]));
    } else {
        tile_sums of[4];
        memset(of, 0, sizeof(of));
        for (int start = 0, end; start < np; start = end) {
            end = MIN(np, start + SEGMENT);
            for (int n = 0; n < 4; n++) {
                EACH(sums[j][i] = of[n][j][i]);
                ahead = add_f16(tall, broad, k, start + n * apart, end, a, nb_a, b, ahead, sums);
                EACH(of[n][j][i] = sums[j][i]);
            }
        }
        EACH(even[j][i] = ADD(of[0][j][i], of[2][j][i]));
        EACH(odd[j][i] = ADD(of[1][j][i], of[3][j][i]));
    }
    for (int j = 0; j < broad; j++) {
        GGML_F16_DOT_VEC whole[4];
        for (int i = 0; i < 4; i++) {
            whole[i] = i < tall ? ADD(even[j][i], odd[j][i]) : GGML_F16_DOT_VEC_ZERO;
        }
        float rounded[4];
        _mm_storeu_ps(rounded, sums_of_four(whole));
        if (np == k) {
            memcpy(c[j] + row, rounded, tall * sizeof(float));
            continue;
        }
        for (int i = 0; i < tall; i++) {
            ggml_float sum = rounded[i];
            for (int at = np; at < k; at++) {
                sum += (ggml_float) (GGML_CPU_FP16_TO_FP32(((const ggml_fp16_t *) (a + i * nb_a))[at]) *
                                     GGML_CPU_FP16_TO_FP32(((const ggml_fp16_t *) b[j])[at]));
            }
            c[j][row + i] = (float) sum;
        }
    }
}

/* Blocks of 32 elements: their bytes are unpacked once for all columns. As ggml_vec_dot_... adds them up: eight sums a
   row, each of every fourth product of a block, scaled. */

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

INLINE float sum_of_eight(__m256 sums) {
    __m128 four = _mm_add_ps(_mm256_extractf128_ps(sums, 1), _mm256_castps256_ps128(sums));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/* Each element of `sums` gets the products of a block of each row with those of each column. With VNNI,
   128 is added to each signed byte of A, and 128 times the sum of B is subtracted. Otherwise the signs of A are moved to
   B. */
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

INLINE void tile_of_32(int type, int tall, int broad, int blocks, const char * a, size_t nb_a, const columns_of_32 * b,
                       float * const * c, int64_t row) {
    const size_t size = size_of_block(type);
    const int apart = sums_pairs(type) ? 2 : 1;
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
        float * out = c[j] + row;
        for (int i = 0; i < tall; i++) {
            out[i] = has_least(type) ? sum_of_eight(all[i][j]) + least[i][j] : sum_of_eight(all[i][j]);
        }
    }
}

/* K-quants and IQ4_XS: blocks of 256 elements, unpacked once for all columns. As ggml_vec_dot_... adds them up: eight
   whole sums a block, each of four products of every 32, times their scales. */

#define MOST_OF_256 512 /* blocks of all columns together */

/* Columns of activations: the bytes, the sums and the scales of their blocks. The first block of each column comes first,
   then the second block of each column, and so on. Bytes are aligned so that no load crosses a cache line. */
typedef struct {
    _Alignas(64) int8_t bytes[MOST_OF_256][QK_K];
    int16_t sums[MOST_OF_256][16]; /* of 16 elements each; or, in half the space, of 32 elements each */
    float scales[MOST_OF_256 + 3]; /* four are read at once */
} columns_of_256;

/* True for types with a scale for each 32 elements, not 16. */
INLINE bool has_scales_of_32(int type) {
    return type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K;
}

INLINE void convert_of_256(int type, columns_of_256 * b, int broad, int blocks, const char * const * columns) {
    memset(b->scales + broad * blocks, 0, 3 * sizeof(float)); /* Leftover bytes could be denormal numbers: slow. */
    for (int j = 0; j < broad; j++) {
        const block_q8_K * from = (const block_q8_K *) columns[j];
        for (int block = 0, at = j; block < blocks; block++, at += broad) {
            memcpy(b->bytes[at], from[block].qs, QK_K);
            b->scales[at] = from[block].d;
            if (has_scales_of_32(type)) {
                const __m128i * sums = (const __m128i *) from[block].bsums;
                const __m128i pairs = _mm_hadd_epi16(_mm_loadu_si128(sums), _mm_loadu_si128(sums + 1));
                _mm_storeu_si128((__m128i *) b->sums + at, pairs);
            } else if (type != GGML_TYPE_Q3_K && type != GGML_TYPE_IQ4_XS) {
                memcpy(b->sums[at], from[block].bsums, sizeof(b->sums[at]));
            }
        }
    }
}

/* A block of each column. */
typedef struct {
    const int8_t (*bytes)[QK_K];
    const __m128i * sums;
    const float * scales;
} blocks_of_256;

/* The sums of a row with each column. */
typedef struct {
    __m256i whole[BROAD]; /* of a block */
    __m256 scaled[BROAD];
    __m256 least[BROAD / 2]; /* of the least values of Q4_K: four sums for each of two columns */
    float minima[BROAD];     /* of the least values of Q5_K */
} sums_of_256;

/* Returns four of eight scales of 16 bits: `first` and `second` alternate in the lower half, `third` and `fourth` in the
   upper half. Scale n is in the bytes 2n and 2n + 1: as a number of 16 bits, these two places are 514n + 256. */
INLINE __m256i four_of(__m128i scales, int first, int second, int third, int fourth) {
    const __m128i low = _mm_set1_epi32((514 * second + 256) << 16 | (514 * first + 256));
    const __m128i high = _mm_set1_epi32((514 * fourth + 256) << 16 | (514 * third + 256));
    const __m256i places = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(scales), places);
}

/* Adds the products of two times 32 unsigned elements with those of B from `at` on, multiplied by scales from number `n`
   on. `each` is 2 if every 16 elements have a scale, and 1 if every 32 elements have one. With VNNI, sums of four
   products fit into 16 bits. Those of both parts are put next to each other, so that one multiplication scales both. */
INLINE void add_unsigned(sums_of_256 * sums, int broad, __m256i first, __m256i second, blocks_of_256 b, int at,
                         __m128i scales, int n, int each) {
#ifdef FOURS
    const __m256i zero = _mm256_setzero_si256();
    const __m256i pairs = four_of(scales, n, n + each, n + each - 1, n + 2 * each - 1);
    for (int j = 0; j < broad; j++) {
        const __m256i * bx = (const __m256i *) (b.bytes[j] + at);
        const __m256i low = FOURS(zero, first, _mm256_loadu_si256(bx));
        const __m256i high = _mm256_slli_epi32(FOURS(zero, second, _mm256_loadu_si256(bx + 1)), 16);
        sums->whole[j] = PAIRS(sums->whole[j], pairs, _mm256_blend_epi16(low, high, 0xAA));
    }
#else
    for (int i = 0; i < 2; i++, n += each) {
        const __m256i pairs = four_of(scales, n, n, n + each - 1, n + each - 1);
        for (int j = 0; j < broad; j++) {
            const __m256i bx = _mm256_loadu_si256((const __m256i *) (b.bytes[j] + at) + i);
            sums->whole[j] = PAIRS(sums->whole[j], pairs, _mm256_maddubs_epi16(i ? second : first, bx));
        }
    }
#endif
}

/* Adds the products of 32 signed elements with those of B from `at` on, multiplied by the scale of each pair. */
INLINE void add_signed(sums_of_256 * sums, int broad, __m256i ax, blocks_of_256 b, int at, __m256i scales) {
    const __m256i size = _mm256_sign_epi8(ax, ax);
    for (int j = 0; j < broad; j++) {
        const __m256i bx = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i *) (b.bytes[j] + at)), ax);
        sums->whole[j] = PAIRS(sums->whole[j], scales, _mm256_maddubs_epi16(size, bx));
    }
}

/* The sum of each 16 elements of a column, times a number. */
INLINE __m256i sums_of_16(blocks_of_256 b, int j, __m256i numbers) {
    return _mm256_madd_epi16(numbers, _mm256_loadu_si256((const __m256i *) b.sums + j));
}

/* Whole sums of a block, times a scale of A and that of B. */
INLINE void add_scaled(sums_of_256 * sums, blocks_of_256 b, int j, float scale, __m256i whole) {
    sums->scaled[j] = _mm256_fmadd_ps(_mm256_set1_ps(b.scales[j] * scale), _mm256_cvtepi32_ps(whole), sums->scaled[j]);
}

/* Bits of each byte, moved to the right (left if negative). */
INLINE __m256i moved(__m256i bits, int by, __m256i mask) {
    return _mm256_and_si256(by < 0 ? _mm256_slli_epi16(bits, -by) : _mm256_srli_epi16(bits, by), mask);
}

INLINE void add_q2_k(sums_of_256 * sums, int broad, const block_q2_K * a, blocks_of_256 b) {
    const __m128i both = _mm_loadu_si128((const __m128i *) a->scales), nibble = _mm_set1_epi8(0xF);
    const __m256i minima = _mm256_cvtepi8_epi16(_mm_and_si128(_mm_srli_epi16(both, 4), nibble));
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_and_si128(both, nibble)), three = _mm256_set1_epi8(3);
    for (int half = 0; half < 2; half++) {
        const __m128i eight = half ? _mm256_extracti128_si256(scales, 1) : _mm256_castsi256_si128(scales);
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (a->qs + 32 * half));
        for (int quarter = 0; quarter < 4; quarter += 2) {
            const __m256i first = moved(bits, 2 * quarter, three), second = moved(bits, 2 * quarter + 2, three);
            add_unsigned(sums, broad, first, second, b, 128 * half + 32 * quarter, eight, 2 * quarter, 2);
        }
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d), am = GGML_CPU_FP16_TO_FP32(a->dmin);
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, b, j, -am, sums_of_16(b, j, minima));
        add_scaled(sums, b, j, ad, sums->whole[j]);
    }
}

INLINE void add_q3_k(sums_of_256 * sums, int broad, const block_q3_K * a, blocks_of_256 b) {
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
            const __m256i scale = four_of(eight, 2 * quarter, 2 * quarter, 2 * quarter + 1, 2 * quarter + 1);
            add_signed(sums, broad, _mm256_sub_epi8(ax, four), b, 32 * at, scale);
        }
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d);
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, b, j, ad, sums->whole[j]);
    }
}

/* Q4_K, and Q5_K with a fifth bit. */
INLINE void add_q45_k(int type, sums_of_256 * sums, int broad, const void * a, blocks_of_256 b) {
    const bool has_fifth = type == GGML_TYPE_Q5_K;
    const block_q5_K * five = a;
    const block_q4_K * four = a; /* d, dmin and scales come first in both */
    const uint8_t * qs = has_fifth ? five->qs : four->qs;
    union {
        uint32_t words[4];
        uint8_t bytes[16]; /* eight scales, eight least values */
    } six;
    unpack_scales(four->scales, six.words);
    const __m128i scales = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) six.bytes));
    const __m256i low = _mm256_set1_epi8(0xF), bit = _mm256_set1_epi8(16);
    const __m256i top = has_fifth ? _mm256_loadu_si256((const __m256i *) five->qh) : low;
    for (int pair = 0; pair < QK_K / 64; pair++) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (qs + 32 * pair));
        __m256i first = _mm256_and_si256(bits, low), second = moved(bits, 4, low);
        if (has_fifth) {
            first = _mm256_or_si256(first, moved(top, 2 * pair - 4, bit));
            second = _mm256_or_si256(second, moved(top, 2 * pair - 3, bit));
        }
        add_unsigned(sums, broad, first, second, b, 64 * pair, scales, 2 * pair, 1);
    }
    const __m128i minima = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) (six.bytes + 8)));
    const float ad = GGML_CPU_FP16_TO_FP32(four->d), am = GGML_CPU_FP16_TO_FP32(four->dmin);
    const __m256i * pairs = (const __m256i *) b.sums; /* of columns */
    __m256i least[BROAD / 2];                         /* four sums for each column */
    for (int j = 0; j < BROAD; j += 2) {
        const __m256i twice = _mm256_broadcastsi128_si256(minima);
        const __m256i products = _mm256_madd_epi16(twice, _mm256_loadu_si256(pairs + j / 2));
        least[j / 2] = j < broad ? products : _mm256_setzero_si256();
    }
    if (has_fifth) {
        const __m256i twos = _mm256_hadd_epi32(least[0], least[1]);
        const __m128i ones = _mm_hadd_epi32(_mm256_castsi256_si128(twos), _mm256_extracti128_si256(twos, 1));
        int32_t whole[BROAD];
        _mm_storeu_si128((__m128i *) whole, _mm_shuffle_epi32(ones, _MM_SHUFFLE(3, 1, 2, 0)));
        for (int j = 0; j < broad; j++) {
            sums->minima[j] += -b.scales[j] * am * whole[j];
        }
    } else {
        const __m256i fourfold = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
        for (int j = 0; j < broad; j += 2) {
            const __m256 d = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(b.scales + j)), fourfold);
            const __m256 dmin = _mm256_mul_ps(d, _mm256_set1_ps(-am));
            sums->least[j / 2] = _mm256_fmadd_ps(dmin, _mm256_cvtepi32_ps(least[j / 2]), sums->least[j / 2]);
        }
    }
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, b, j, ad, sums->whole[j]);
    }
}

INLINE void add_q6_k(sums_of_256 * sums, int broad, const block_q6_K * a, blocks_of_256 b) {
    const __m256i low = _mm256_set1_epi8(0xF), high = _mm256_set1_epi8(0x30);
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) a->scales));
    for (int half = 0; half < 2; half++) {
        const __m128i eight = half ? _mm256_extracti128_si256(scales, 1) : _mm256_castsi256_si128(scales);
        const __m256i top = _mm256_loadu_si256((const __m256i *) (a->qh + 32 * half));
        const __m256i * bits = (const __m256i *) (a->ql + 64 * half);
        for (int quarter = 0; quarter < 4; quarter += 2) {
            __m256i ax[2];
            for (int i = 0; i < 2; i++) {
                const __m256i two = moved(top, 2 * (quarter + i) - 4, high);
                ax[i] = _mm256_or_si256(moved(_mm256_loadu_si256(bits + i), 2 * quarter, low), two);
            }
            add_unsigned(sums, broad, ax[0], ax[1], b, 128 * half + 32 * quarter, eight, 2 * quarter, 2);
        }
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d);
    for (int j = 0; j < broad; j++) { /* elements are 32 less */
        const __m256i less = _mm256_slli_epi32(sums_of_16(b, j, scales), 5);
        add_scaled(sums, b, j, ad, _mm256_sub_epi32(sums->whole[j], less));
    }
}

INLINE void add_iq4_xs(sums_of_256 * sums, int broad, const block_iq4_xs * a, blocks_of_256 b) {
#ifdef __GNUC__
#pragma GCC unroll 8
#endif
    for (int at = 0; at < QK_K / 32; at++) {
        const int low = a->scales_l[at / 2] >> 4 * (at % 2) & 0xf, high = (a->scales_h >> 2 * at & 3) << 4;
        const __m256i scales = _mm256_set1_epi16((short) ((low | high) - 32));
        add_signed(sums, broad, looked_up(a->qs + 16 * at, kvalues_iq4nl), b, 32 * at, scales);
    }
    const float ad = GGML_CPU_FP16_TO_FP32(a->d);
    for (int j = 0; j < broad; j++) {
        add_scaled(sums, b, j, ad, sums->whole[j]);
    }
}

INLINE void row_of_256(int type, int broad, int blocks, const char * a, const columns_of_256 * b, float * const * c,
                       int64_t row) {
    sums_of_256 sums;
    for (int j = 0; j < broad; j++) {
        sums.scaled[j] = _mm256_setzero_ps();
        sums.least[j / 2] = _mm256_setzero_ps();
        sums.minima[j] = 0;
    }
    const int size = (int) size_of_256(type);
    for (int block = 0; block < blocks; block++, a += size) {
        for (int i = 0; i < size; i += 64) {
            _mm_prefetch(a + AHEAD + i, _MM_HINT_T1);
        }
        const int at = block * broad;
        const __m128i * first = (const __m128i *) b->sums;
        const blocks_of_256 of = {b->bytes + at, first + (has_scales_of_32(type) ? at : 2 * at), b->scales + at};
        for (int j = 0; j < broad; j++) {
            sums.whole[j] = _mm256_setzero_si256();
        }
        switch (type) {
            case GGML_TYPE_Q2_K: add_q2_k(&sums, broad, (const block_q2_K *) a, of); break;
            case GGML_TYPE_Q3_K: add_q3_k(&sums, broad, (const block_q3_K *) a, of); break;
            case GGML_TYPE_Q4_K: add_q45_k(type, &sums, broad, a, of); break;
            case GGML_TYPE_Q5_K: add_q45_k(type, &sums, broad, a, of); break;
            case GGML_TYPE_Q6_K: add_q6_k(&sums, broad, (const block_q6_K *) a, of); break;
            default:             add_iq4_xs(&sums, broad, (const block_iq4_xs *) a, of); break;
        }
    }
    for (int j = 0; j < broad; j++) {
        float * out = c[j] + row;
        *out = sum_of_eight(sums.scaled[j]);
        if (type == GGML_TYPE_Q4_K) {
            const __m256 both = sums.least[j / 2];
            __m128 least = j % 2 ? _mm256_extractf128_ps(both, 1) : _mm256_castps256_ps128(both);
            least = _mm_add_ps(least, _mm_movehl_ps(least, least));
            *out += _mm_cvtss_f32(_mm_add_ss(least, _mm_movehdup_ps(least)));
        } else if (type == GGML_TYPE_Q5_K) {
            *out += sums.minima[j];
        }
    }
}
