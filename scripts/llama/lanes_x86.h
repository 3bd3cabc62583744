/* Vectors of AVX-512 or AVX2, one row of weights in each lane of 32 bits; included by interleaved.h. */

static inline void prefetch(const void * p) { _mm_prefetch((const char *) p, _MM_HINT_T0); }

#if defined(__AVX512F__) && defined(__AVX512BW__)

enum { ROWS = 16 };
typedef __m512 F;
typedef __m512i I;
typedef __m128i S; /* a byte for each row */
typedef uint64_t M; /* a bit for each byte of a vector */

static inline I load(const void * p) { return _mm512_loadu_si512(p); }
static inline void store_ints(void * p, I x) { _mm512_storeu_si512(p, x); }
static inline I ints(int32_t x) { return _mm512_set1_epi32(x); }
static inline F floats(float x) { return _mm512_set1_ps(x); }
static inline F load_floats(const float * p) { return _mm512_loadu_ps(p); }
static inline void store(float * p, F x) { _mm512_storeu_ps(p, x); }
static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
static inline F less(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a * b */
static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
static inline F minus(F a, F b) { return _mm512_sub_ps(a, b); }
static inline F larger(F a, F b) { return _mm512_max_ps(a, b); }
static inline float largest_of(F a) { return _mm512_reduce_max_ps(a); }
static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
static inline F to_floats(I x) { return _mm512_cvtepi32_ps(x); }
static inline F as_floats(I x) { return _mm512_castsi512_ps(x); }
static inline F halves(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
/* Of numbers with four bits of exponent and three of mantissa, the 256th part. */
static inline F eights(const void * p) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *) p)), 7));
}
static inline I words(const void * p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)); }
static inline S bytes(const void * p) { return _mm_loadu_si128((const __m128i *) p); }
static inline I widened(S x) { return _mm512_cvtepu8_epi32(x); }
static inline I widened_signed(S x) { return _mm512_cvtepi8_epi32(x); }
static inline S low_of(S x) { return _mm_and_si128(x, _mm_set1_epi8(15)); }
static inline S high_of(S x) { return _mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15)); }
static inline S nibbles(M x) { /* a nibble of each row */
    const __m128i of = _mm_cvtsi64_si128((int64_t) x);
    return low_of(_mm_unpacklo_epi8(of, _mm_srli_epi16(of, 4)));
}
template <int N> static inline I up(I x) { return _mm512_slli_epi32(x, N); }
template <int N> static inline I down(I x) { return _mm512_srli_epi32(x, N); }
static inline I masked(I x, int32_t mask) { return _mm512_and_si512(x, ints(mask)); }
static inline I gathered(const uint32_t * table, I at) { return _mm512_i32gather_epi32(at, table, 4); }
/* The sums of bytes, or their differences where a bit is set. */
static inline I plus_or_minus(I a, I b, M minus) { return _mm512_mask_sub_epi8(_mm512_add_epi8(a, b), minus, a, b); }
/* Some bits of each byte, moved by N to the right (or to the left). */
template <int N> static inline I bits(I x, int mask) {
    const I moved = N > 0 ? _mm512_srli_epi16(x, N > 0 ? N : 0) : N < 0 ? _mm512_slli_epi16(x, N < 0 ? -N : 0) : x;
    return _mm512_and_si512(moved, _mm512_set1_epi8((char) mask));
}
static inline I both(I a, I b) { return _mm512_or_si512(a, b); }
/* Of 32 bytes of each row, which follow each other, eight vectors with four of each row. */
static inline void transpose(const void * rows, I * to) {
    const __m256i * row = (const __m256i *) rows;
    I of[2][4];
    for (int i = 0; i < 2; i++, row += 8) {
        I two[4];
        for (int j = 0; j < 4; j++) {
            const I low = _mm512_castsi256_si512(_mm256_loadu_si256(row + j));
            two[j] = _mm512_inserti64x4(low, _mm256_loadu_si256(row + j + 4), 1);
        }
        const I a = _mm512_unpacklo_epi32(two[0], two[1]), b = _mm512_unpackhi_epi32(two[0], two[1]);
        const I c = _mm512_unpacklo_epi32(two[2], two[3]), d = _mm512_unpackhi_epi32(two[2], two[3]);
        of[i][0] = _mm512_unpacklo_epi64(a, c);
        of[i][1] = _mm512_unpackhi_epi64(a, c);
        of[i][2] = _mm512_unpacklo_epi64(b, d);
        of[i][3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int j = 0; j < 4; j++) {
        to[j] = _mm512_shuffle_i32x4(of[0][j], of[1][j], 0x88);
        to[j + 4] = _mm512_shuffle_i32x4(of[0][j], of[1][j], 0xDD);
    }
}
/* Stores the lower words of all lanes, then the higher ones. */
static inline void store_words(void * p, I x) {
    _mm256_storeu_si256((__m256i *) p, _mm512_cvtepi32_epi16(x));
    _mm256_storeu_si256((__m256i *) p + 1, _mm512_cvtepi32_epi16(down<16>(x)));
}
static inline I looked_up(I x, const int8_t * table) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) table)), x);
}

/* The sum of the lanes of each vector. */
static inline F sums_of(const F * of) {
    F two[8], four[4], eight[2];
    for (int i = 0; i < 8; i++) {
        two[i] = add(_mm512_unpacklo_ps(of[2 * i], of[2 * i + 1]), _mm512_unpackhi_ps(of[2 * i], of[2 * i + 1]));
    }
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(two[2 * i]), b = _mm512_castps_pd(two[2 * i + 1]);
        four[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++) {
        eight[i] = add(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88),
                       _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xDD));
    }
    return add(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88), _mm512_shuffle_f32x4(eight[0], eight[1], 0xDD));
}

#ifdef __AVX512VNNI__
#define UNSIGNED_ONLY 1 /* weights of 8 bits are stored with 128 added */
static inline I dot(I sum, I w, int32_t a) { return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(a)); }
#else
#define UNSIGNED_ONLY 0
/* The sums of two products each: of at most 7 bits, or of a signed byte. */
static inline I twos(I w, int32_t a) { return _mm512_maddubs_epi16(w, _mm512_set1_epi32(a)); }
static inline I twos_signed(I w, int32_t a) {
    const I of = _mm512_set1_epi32(a);
    const __mmask64 negative = _mm512_movepi8_mask(w);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), _mm512_mask_sub_epi8(of, negative, _mm512_setzero_si512(), of));
}
static inline I add_words(I a, I b) { return _mm512_add_epi16(a, b); }
static inline I add_twos(I sum, I twos) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(twos, _mm512_set1_epi16(1)));
}
#endif

#else

enum { ROWS = 8 };
typedef __m256 F;
typedef __m256i I;
typedef __m128i S; /* a byte for each row, in the lower half */
typedef uint32_t M; /* a bit for each byte of a vector */

static inline I load(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
static inline void store_ints(void * p, I x) { _mm256_storeu_si256((__m256i *) p, x); }
static inline I ints(int32_t x) { return _mm256_set1_epi32(x); }
static inline F floats(float x) { return _mm256_set1_ps(x); }
static inline F load_floats(const float * p) { return _mm256_loadu_ps(p); }
static inline void store(float * p, F x) { _mm256_storeu_ps(p, x); }
static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
static inline F less(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); } /* c - a * b */
static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
static inline F minus(F a, F b) { return _mm256_sub_ps(a, b); }
static inline F larger(F a, F b) { return _mm256_max_ps(a, b); }
static inline float largest_of(F a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
static inline F to_floats(I x) { return _mm256_cvtepi32_ps(x); }
static inline F as_floats(I x) { return _mm256_castsi256_ps(x); }
static inline F halves(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
static inline F eights(const void * p) {
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *) p)), 7));
}
static inline I words(const void * p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)); }
static inline S bytes(const void * p) { return _mm_loadl_epi64((const __m128i *) p); }
static inline I widened(S x) { return _mm256_cvtepu8_epi32(x); }
static inline I widened_signed(S x) { return _mm256_cvtepi8_epi32(x); }
static inline S low_of(S x) { return _mm_and_si128(x, _mm_set1_epi8(15)); }
static inline S high_of(S x) { return _mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15)); }
static inline S nibbles(M x) {
    const __m128i of = _mm_cvtsi32_si128((int32_t) x);
    return low_of(_mm_unpacklo_epi8(of, _mm_srli_epi16(of, 4)));
}
template <int N> static inline I up(I x) { return _mm256_slli_epi32(x, N); }
template <int N> static inline I down(I x) { return _mm256_srli_epi32(x, N); }
static inline I masked(I x, int32_t mask) { return _mm256_and_si256(x, ints(mask)); }
static inline I gathered(const uint32_t * table, I at) { return _mm256_i32gather_epi32((const int *) table, at, 4); }
static inline I plus_or_minus(I a, I b, M minus) {
    const I byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const I bit = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    const I is_minus = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(ints((int32_t) minus), byte), bit), bit);
    return _mm256_sub_epi8(_mm256_add_epi8(a, _mm256_xor_si256(b, is_minus)), is_minus);
}
template <int N> static inline I bits(I x, int mask) {
    const I moved = N > 0 ? _mm256_srli_epi16(x, N > 0 ? N : 0) : N < 0 ? _mm256_slli_epi16(x, N < 0 ? -N : 0) : x;
    return _mm256_and_si256(moved, _mm256_set1_epi8((char) mask));
}
static inline I both(I a, I b) { return _mm256_or_si256(a, b); }
static inline void transpose(const void * rows, I * to) {
    const I * row = (const I *) rows;
    I of[2][4];
    for (int i = 0; i < 2; i++, row += 4) {
        const I a = _mm256_unpacklo_epi32(load(row), load(row + 1)),
                b = _mm256_unpackhi_epi32(load(row), load(row + 1));
        const I c = _mm256_unpacklo_epi32(load(row + 2), load(row + 3));
        const I d = _mm256_unpackhi_epi32(load(row + 2), load(row + 3));
        of[i][0] = _mm256_unpacklo_epi64(a, c);
        of[i][1] = _mm256_unpackhi_epi64(a, c);
        of[i][2] = _mm256_unpacklo_epi64(b, d);
        of[i][3] = _mm256_unpackhi_epi64(b, d);
    }
    for (int j = 0; j < 4; j++) {
        to[j] = _mm256_permute2x128_si256(of[0][j], of[1][j], 0x20);
        to[j + 4] = _mm256_permute2x128_si256(of[0][j], of[1][j], 0x31);
    }
}
static inline void store_words(void * p, I x) {
    store_ints(p, _mm256_permute4x64_epi64(_mm256_packus_epi32(masked(x, 0xFFFF), down<16>(x)), 0xD8));
}
static inline I looked_up(I x, const int8_t * table) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table)), x);
}

/* The sum of the lanes of each vector. */
static inline F sums_of(const F * of) {
    F two[4], four[2];
    for (int i = 0; i < 4; i++) {
        two[i] = add(_mm256_unpacklo_ps(of[2 * i], of[2 * i + 1]), _mm256_unpackhi_ps(of[2 * i], of[2 * i + 1]));
    }
    for (int i = 0; i < 2; i++) {
        const __m256d a = _mm256_castps_pd(two[2 * i]), b = _mm256_castps_pd(two[2 * i + 1]);
        four[i] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return add(_mm256_permute2f128_ps(four[0], four[1], 0x20), _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define UNSIGNED_ONLY 1
static inline I dot(I sum, I w, int32_t a) { return _mm256_dpbusd_epi32(sum, w, _mm256_set1_epi32(a)); }
#elif defined(__AVXVNNI__)
#define UNSIGNED_ONLY 1
static inline I dot(I sum, I w, int32_t a) { return _mm256_dpbusd_avx_epi32(sum, w, _mm256_set1_epi32(a)); }
#else
#define UNSIGNED_ONLY 0
static inline I twos(I w, int32_t a) { return _mm256_maddubs_epi16(w, _mm256_set1_epi32(a)); }
static inline I twos_signed(I w, int32_t a) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(a), w));
}
static inline I add_words(I a, I b) { return _mm256_add_epi16(a, b); }
static inline I add_twos(I sum, I twos) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(twos, _mm256_set1_epi16(1)));
}
#endif
#endif

static inline int32_t four_of(const int8_t * a) {
    int32_t four;
    memcpy(&four, a, sizeof(four));
    return four;
}

/* Adds the products of four vectors of weights and 16 activations. Weights of 8 bits are signed. */
#if UNSIGNED_ONLY
template <int BITS> static inline I products(I sum, const I * w, const int8_t * a) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
        sum = dot(sum, w[i], four_of(a + 4 * i));
    }
    return sum;
}
#else
/* Products are added up in 16 bits as long as they fit: those of 5 bits eight at a time, of 6 bits four, of others two. */
template <int BITS> static inline I products(I sum, const I * w, const int8_t * a) {
    enum { FIT = BITS <= 5 ? 4 : BITS == 6 ? 2 : 1 };
    UNROLLED
    for (int i = 0; i < 4; i += FIT) {
        I words = BITS == 8 ? twos_signed(w[i], four_of(a + 4 * i)) : twos(w[i], four_of(a + 4 * i));
        UNROLLED
        for (int j = i + 1; j < i + FIT; j++) {
            words = add_words(words, twos(w[j], four_of(a + 4 * j)));
        }
        sum = add_twos(sum, words);
    }
    return sum;
}
#endif

/* A bit for each of 16 numbers, which is set if it is not this one. */
static inline uint32_t unequal(const uint16_t * of, uint16_t to) {
    const __m256i equal = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *) of), _mm256_set1_epi16((short) to));
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1));
    return ~(uint32_t) _mm_movemask_epi8(bytes) & 0xFFFF;
}

/* The sum of eight numbers. */
static inline int32_t sum_of_eight(__m256i x) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

/* Rounds 32 floats to whole numbers from -127 to 127, of which halves go to the even one. Returns their scale, and the
   sums of the first and of the last 16. */
static inline float round_32(const float * x, int8_t * to, int32_t * sums) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 of[4];
    __m256i whole[4];
    for (int i = 0; i < 4; i++) {
        of[i] = _mm256_loadu_ps(x + 8 * i);
    }
    const __m256 most = _mm256_max_ps(_mm256_max_ps(_mm256_andnot_ps(sign, of[0]), _mm256_andnot_ps(sign, of[1])),
                                      _mm256_max_ps(_mm256_andnot_ps(sign, of[2]), _mm256_andnot_ps(sign, of[3])));
    __m128 largest = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
    largest = _mm_max_ss(largest, _mm_movehdup_ps(largest));
    float size = _mm_cvtss_f32(largest);
    size = size < 1e-30f ? 0 : size; /* its inverse would be infinite */
    __m256 nans = _mm256_setzero_ps();
    for (int i = 0; i < 4; i++) {
        nans = _mm256_or_ps(nans, _mm256_cmp_ps(of[i], of[i], _CMP_UNORD_Q));
    }
    const __m256 inverse = _mm256_set1_ps(size > 0 ? 127 / size : 0);
    for (int i = 0; i < 4; i++) {
        whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(of[i], inverse));
    }
    const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *) to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
    sums[0] = sum_of_eight(_mm256_add_epi32(whole[0], whole[1]));
    sums[1] = sum_of_eight(_mm256_add_epi32(whole[2], whole[3]));
    return _mm256_movemask_ps(nans) ? NAN : size / 127;
}
