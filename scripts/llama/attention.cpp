/* Flash attention whose sums depend on what a query sees alone: not on other queries of the pass, on the threads, or on
   where the cells are in the cache.

   The cells that a query sees come in blocks of 64, in their order, and masked cells do not count. In a block, all scores
   are computed first; then the largest one so far becomes the reference of the exponentials, and the values are added up
   one after the other. Eight blocks are a chunk. Chunks are computed apart, so that several threads can share the cells
   of a few queries, and added up in their order. */
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "simd-mappings.h"
#include "vec.h"

#include "kernels.h"
#include "lanes.h"

#ifdef EDGESPEC_LANES

#include <algorithm>

namespace edgespec {
namespace {

#include EDGESPEC_LANES

constexpr int64_t BLOCK = 64; /* cells */
constexpr int64_t BLOCKS = 8; /* of a chunk */
constexpr int64_t FEW = 16; /* queries whose cells are shared out among the threads */
constexpr size_t MOST_BYTES = 64 << 20; /* of the sums of their chunks */
constexpr int64_t TILE = 32; /* rows that use the same converted block */
constexpr int TOGETHER = 4; /* rows whose values are added up at once */
constexpr int SLICE = ROWS / 4; /* vectors of a value that are added up at once, in half of the registers */

/* The next cells that a row sees. */
struct block_of_cells {
    int64_t next; /* the cell after them */
    int32_t n, is_range, of[BLOCK];

    bool begins_with(const block_of_cells & other) const {
        const bool are_ranges = is_range && other.is_range;
        return other.n <= n && (are_ranges ? of[0] == other.of[0] : !memcmp(of, other.of, other.n * sizeof(*of)));
    }

    /* Finds them. Without a mask, all cells are seen. */
    void find(const ggml_fp16_t * mask, int64_t cells) {
        n = 0;
        for (int64_t at = next; at < cells && n < BLOCK;) {
            const int most = (int) std::min<int64_t>(16, cells - at);
            uint32_t seen = mask ? visible(mask + at, most) : (1u << most) - 1;
            if (seen == 0xFFFF && n <= BLOCK - 16) {
                for (int i = 0; i < 16; i++) {
                    of[n + i] = (int32_t) at + i;
                }
                n += 16;
            } else {
                for (; seen && n < BLOCK; seen &= seen - 1) {
                    of[n++] = (int32_t) at + lowest(seen);
                }
                if (n == BLOCK) {
                    next = of[BLOCK - 1] + 1;
                    break;
                }
            }
            next = at += most;
        }
        is_range = n > 0 && of[n - 1] - of[0] == n - 1;
    }

    /* Goes to the block with this number. */
    void go_to(const ggml_fp16_t * mask, int64_t cells, int64_t block) {
        int64_t left = block * BLOCK; /* cells that are seen */
        next = mask ? 0 : std::min(cells, left);
        while (mask && left > 0 && next < cells) {
            const int most = (int) std::min<int64_t>(16, cells - next);
            uint32_t seen = visible(mask + next, most);
            const int64_t n_seen = popcount(seen);
            if (n_seen <= left) {
                left -= n_seen;
                next += most;
            } else {
                for (; left > 0; left--) {
                    seen &= seen - 1;
                }
                next += lowest(seen);
            }
        }
    }

    static int popcount(uint32_t bits) {
        int n = 0;
        for (; bits; bits &= bits - 1) {
            n++;
        }
        return n;
    }

    static int lowest(uint32_t bits) {
#ifdef _MSC_VER
        unsigned long found;
        _BitScanForward(&found, bits);
        return (int) found;
#else
        return __builtin_ctz(bits);
#endif
    }

    /* A bit for each of up to 16 cells, which is set if the cell is not masked with minus infinity. */
    static uint32_t visible(const ggml_fp16_t * mask, int most) {
        if (most == 16) {
            return unequal(mask, 0xFC00);
        }
        uint32_t bits = 0;
        for (int i = 0; i < most; i++) {
            bits |= (uint32_t) (mask[i] != 0xFC00) << i;
        }
        return bits;
    }
};

/* One operation. Rows are pairs of a query and one of its heads that share keys; `per` heads share them. */
struct attention {
    const ggml_tensor *q, *k, *v, *mask, *sinks;
    ggml_tensor * dst;
    int64_t queries, heads, kv_heads, per, cells, width, value, chunks, tile;
    float scale, cap, bias, m0, m1;
    uint32_t log2;

    explicit attention(ggml_tensor * op)
        : q(op->src[0]), k(op->src[1]), v(op->src[2]), mask(op->src[3]), sinks(op->src[4]), dst(op) {
        queries = q->ne[1];
        heads = q->ne[2];
        kv_heads = k->ne[2];
        per = heads / kv_heads;
        cells = k->ne[1];
        width = GGML_PAD(k->ne[0], ROWS);
        value = GGML_PAD(v->ne[0], ROWS);
        chunks = (cells + BLOCK * BLOCKS - 1) / (BLOCK * BLOCKS);
        tile = std::min(queries, std::max<int64_t>(1, TILE / per));
        memcpy(&scale, (const float *) op->op_params + 0, sizeof(float));
        memcpy(&bias, (const float *) op->op_params + 1, sizeof(float));
        memcpy(&cap, (const float *) op->op_params + 2, sizeof(float));
        scale = cap != 0 ? scale / cap : scale;
        log2 = 1u << (uint32_t) floor(::log2(heads));
        m0 = powf(2, -bias / log2);
        m1 = powf(2, -bias / 2 / log2);
    }

    bool shares_masks() const { return !mask || mask->ne[2] == 1; }
    bool has_few() const { return queries <= FEW && sizeof_parts() <= MOST_BYTES; }
    size_t sizeof_parts() const { return q->ne[3] * queries * heads * chunks * partial() * sizeof(float); }
    int64_t tiles() const { return (queries + tile - 1) / tile; }
    int64_t rows() const { return tile * per; }
    /* The numbers of a part: the sums of values, of exponentials, and their reference. */
    int64_t partial() const { return value + 2; }
    size_t scratch() const { /* of a thread */
        const int64_t numbers = BLOCK * (width + value) + rows() * (width + BLOCK + 2 * partial() + ROWS);
        return GGML_PAD(numbers * sizeof(float) + (rows() + 1) * sizeof(block_of_cells), 64) + 64;
    }
    size_t shared() const { return has_few() ? sizeof_parts() + 64 : 0; }

    int64_t head(int64_t kv_head, int64_t row) const { return kv_head * per + row % per; }
    int64_t kv(int64_t batch) const { return batch * k->ne[3] / q->ne[3]; } /* of keys, which batches may share */
    float slope(int64_t head) const {
        return bias <= 0 ? 1 : head < log2 ? powf(m0, head + 1) : powf(m1, 2 * (head - log2) + 1);
    }
    const ggml_fp16_t * masks(int64_t query, int64_t head, int64_t batch) const {
        return (const ggml_fp16_t *) ((const char *) mask->data + query * mask->nb[1] +
                                      head % mask->ne[2] * mask->nb[2] + batch % mask->ne[3] * mask->nb[3]);
    }
};

/* Converts the keys or values of some cells. Numbers after the last one of each are zero. */
void convert(const ggml_tensor * from, int64_t head, int64_t batch, const int32_t * cells, int64_t n, int64_t padded,
             float * to) {
    const int64_t of = from->ne[0];
    const auto to_float = ggml_get_type_traits(from->type)->to_float;
    const char * first = (const char *) from->data + head * from->nb[2] + batch * from->nb[3];
    for (int64_t i = 0; i < n; i++, to += padded) {
        const char * at = first + cells[i] * from->nb[1];
        if (from->type == GGML_TYPE_F16 && of == padded) {
            for (int64_t j = 0; j < of; j += ROWS) {
                store(to + j, halves(at + 2 * j));
            }
        } else {
            if (from->type == GGML_TYPE_F32) {
                memcpy(to, at, of * sizeof(float));
            } else {
                to_float(at, to, of);
            }
            std::fill(to + of, to + padded, 0.0f);
        }
    }
}

/* Prefetches the block after some cells: those of a head are far from each other, so that the processor does not. */
void prefetch_after(const ggml_tensor * from, int64_t head, int64_t batch, int64_t cell, int64_t cells) {
    const char * at = (const char *) from->data + cell * from->nb[1] + head * from->nb[2] + batch * from->nb[3];
    const int64_t size = ggml_row_size(from->type, from->ne[0]);
    for (int64_t i = 0; i < std::min(BLOCK, cells - cell); i++, at += from->nb[1]) {
        for (int64_t line = 0; line < size; line += 64) {
            prefetch(at + line);
        }
    }
}

/* The scores of ROWS keys with a query. */
static inline F scores(const float * query, const float * keys, int64_t width) {
    F sums[ROWS];
    UNROLLED
    for (int i = 0; i < ROWS; i++) {
        sums[i] = mul(load_floats(query), load_floats(keys + i * width));
    }
    for (int64_t at = ROWS; at < width; at += ROWS) {
        const F x = load_floats(query + at);
        UNROLLED
        for (int i = 0; i < ROWS; i++) {
            sums[i] = fma(x, load_floats(keys + i * width + at), sums[i]);
        }
    }
    return sums_of(sums);
}

/* Adds up some vectors of the values of a block, from number `first` on, for N rows. */
template <int N, int VECTORS>
static inline void add_vectors(const float * values, int64_t width, int64_t n, int64_t first,
                               const float * const * weights, float * const * to) {
    F sums[N][VECTORS];
    UNROLLED
    for (int j = 0; j < N; j++) {
        UNROLLED
        for (int i = 0; i < VECTORS; i++) {
            sums[j][i] = load_floats(to[j] + first + i * ROWS);
        }
    }
    for (int64_t cell = 0; cell < n; cell++) {
        F x[VECTORS];
        UNROLLED
        for (int i = 0; i < VECTORS; i++) {
            x[i] = load_floats(values + cell * width + first + i * ROWS);
        }
        UNROLLED
        for (int j = 0; j < N; j++) {
            const F weight = floats(weights[j][cell]);
            UNROLLED
            for (int i = 0; i < VECTORS; i++) {
                sums[j][i] = fma(weight, x[i], sums[j][i]);
            }
        }
    }
    UNROLLED
    for (int j = 0; j < N; j++) {
        UNROLLED
        for (int i = 0; i < VECTORS; i++) {
            store(to[j] + first + i * ROWS, sums[j][i]);
        }
    }
}

/* Adds up the values of a block for N rows. */
template <int N>
void add_values(const float * values, int64_t width, int64_t n, const float * const * weights, float * const * to) {
    int64_t first = 0;
    for (; first + SLICE * ROWS <= width; first += SLICE * ROWS) {
        add_vectors<N, SLICE>(values, width, n, first, weights, to);
    }
    for (; first < width; first += ROWS) {
        add_vectors<N, 1>(values, width, n, first, weights, to);
    }
}

void scale_all(float * to, int64_t n, float by) {
    for (int64_t i = 0; i < n; i += ROWS) {
        store(to + i, mul(load_floats(to + i), floats(by)));
    }
}

/* Adds the sums of a chunk to those before it. A part is: value sums, then the sum of exponentials, and their reference. */
void merge(float * sums, const float * chunk, int64_t value) {
    const float before = sums[value + 1], here = chunk[value + 1];
    if (here == -INFINITY) {
        return;
    }
    if (before == -INFINITY) {
        memcpy(sums, chunk, (value + 2) * sizeof(float));
        return;
    }
    const float most = std::max(before, here), a = expf(before - most), b = expf(here - most);
    for (int64_t i = 0; i < value; i += ROWS) {
        store(sums + i, fma(load_floats(chunk + i), floats(b), mul(load_floats(sums + i), floats(a))));
    }
    sums[value] = fmaf(chunk[value], b, sums[value] * a);
    sums[value + 1] = most;
}

/* Writes the result of a row. */
void finish(const attention & of, float * sums, int64_t query, int64_t head, int64_t batch) {
    const int64_t value = of.value, n = of.v->ne[0];
    float total = sums[value], most = sums[value + 1];
    if (of.sinks) {
        const float sink = ((const float *) of.sinks->data)[head], top = std::max(most, sink);
        const float factor = most == -INFINITY ? 0 : expf(most - top);
        scale_all(sums, value, factor);
        total = fmaf(total, factor, expf(sink - top));
    }
    const float inverse = total == 0 ? 0 : 1 / total;
    float * to =
        (float *) ((char *) of.dst->data + (batch * of.queries * of.heads + query * of.heads + head) * of.dst->nb[1]);
    for (int64_t i = 0; i < n; i++) {
        to[i] = sums[i] * inverse;
    }
}

/* The rows of a tile: their queries, scores, and sums of the chunk and of all chunks, in the memory of a thread. */
struct tile_memory {
    float *keys, *values, *queries, *scores, *sums, *all, *totals;
    block_of_cells *cells, *converted;
    tile_memory(const attention & of, char * memory) {
        float * at = (float *) GGML_PAD((uintptr_t) memory, 64);
        keys = at;
        values = keys + BLOCK * of.width;
        queries = values + BLOCK * of.value;
        scores = queries + of.rows() * of.width;
        totals = scores + of.rows() * BLOCK;
        sums = totals + of.rows() * ROWS;
        all = sums + of.rows() * of.partial();
        cells = (block_of_cells *) (all + of.rows() * of.partial());
        converted = cells + of.rows();
    }
};

/* Computes the scores of a row with the cells of its block. Those after the last one are minus infinity. Returns the
   largest one. */
float compute_scores(const attention & of, const tile_memory & m, int64_t row, const ggml_fp16_t * mask, float slope) {
    const block_of_cells & cells = m.cells[row];
    float * to = m.scores + row * BLOCK;
    F most = floats(-INFINITY);
    for (int64_t i = 0; i < cells.n; i += ROWS) {
        F x = scores(m.queries + row * of.width, m.keys + i * of.width, of.width);
        const int64_t n = std::min<int64_t>(ROWS, cells.n - i);
        if (of.cap != 0 || n < ROWS || (mask && !cells.is_range)) {
            float one[ROWS];
            store(one, x);
            for (int64_t j = 0; j < ROWS; j++) {
                one[j] = of.cap != 0 ? of.cap * tanhf(one[j]) : one[j];
                one[j] = j >= n ? -INFINITY
                         : mask ? fmaf(slope, GGML_CPU_FP16_TO_FP32(mask[cells.of[i + j]]), one[j])
                                : one[j];
            }
            x = load_floats(one);
        } else if (mask) {
            x = fma(floats(slope), halves(mask + cells.of[i]), x);
        }
        store(to + i, x);
        most = larger(most, x);
    }
    return largest_of(most);
}

/* Computes the sums of the next chunk for all rows of a tile. */
void compute_chunk(const attention & of, const tile_memory & m, int64_t batch, int64_t kv_head, int64_t first,
                   int64_t n) {
    const int64_t n_rows = n * of.per, value = of.value, part = of.partial();
    for (int64_t row = 0; row < n_rows; row++) {
        float * sums = m.sums + row * part;
        std::fill(sums, sums + value + 1, 0.0f);
        sums[value + 1] = -INFINITY;
        store(m.totals + row * ROWS, floats(0));
    }
    const float * weights[TOGETHER];
    float * sums[TOGETHER];
    int together = 0;
    int64_t n_cells = 0; /* of these rows */
    const auto flush = [&] {
        switch (together) {
            case 1: add_values<1>(m.values, value, n_cells, weights, sums); break;
            case 2: add_values<2>(m.values, value, n_cells, weights, sums); break;
            case 3: add_values<3>(m.values, value, n_cells, weights, sums); break;
            case 4: add_values<4>(m.values, value, n_cells, weights, sums); break;
            default: break;
        }
        together = 0;
    };
    m.converted->n = 0;
    for (int64_t block = 0; block < BLOCKS; block++) {
        for (int64_t row = 0; row < n_rows; row++) {
            const int64_t query = first + row / of.per, head = of.head(kv_head, row);
            const ggml_fp16_t * mask = of.mask ? of.masks(query, head, batch) : nullptr;
            block_of_cells & cells = m.cells[row];
            if (row % of.per && of.shares_masks()) {
                cells = m.cells[row - 1];
            } else {
                cells.find(mask, of.cells);
            }
            if (cells.n == 0) {
                continue;
            }
            if (!m.converted->begins_with(cells)) {
                flush();
                const int64_t known = cells.begins_with(*m.converted) ? m.converted->n : 0, more = cells.n - known;
                convert(of.k, kv_head, of.kv(batch), cells.of + known, more, of.width, m.keys + known * of.width);
                convert(of.v, kv_head, of.kv(batch), cells.of + known, more, value, m.values + known * value);
                std::fill(m.keys + cells.n * of.width, m.keys + GGML_PAD(cells.n, ROWS) * of.width, 0.0f);
                *m.converted = cells;
                prefetch_after(of.k, kv_head, of.kv(batch), cells.next, of.cells);
                prefetch_after(of.v, kv_head, of.kv(batch), cells.next, of.cells);
            }
            float *sum = m.sums + row * part, *s = m.scores + row * BLOCK;
            const float before = sum[value + 1];
            const float top = std::max(before, compute_scores(of, m, row, mask, of.slope(head)));
            F total = load_floats(m.totals + row * ROWS);
            if (top != before && before != -INFINITY) {
                const float factor = expf(before - top);
                scale_all(sum, value, factor);
                total = mul(total, floats(factor));
            }
            sum[value + 1] = top;
            for (int64_t i = 0; i < cells.n; i += ROWS) {
                const F x = ggml_v_expf(minus(load_floats(s + i), floats(top)));
                store(s + i, x);
                total = add(total, x);
            }
            store(m.totals + row * ROWS, total);
            if (together && n_cells != cells.n) {
                flush();
            }
            n_cells = cells.n;
            weights[together] = s;
            sums[together++] = sum;
            if (together == TOGETHER) {
                flush();
            }
        }
        flush();
    }
    for (int64_t row = 0; row < n_rows; row++) {
        float lanes[ROWS], all = 0;
        store(lanes, load_floats(m.totals + row * ROWS));
        for (int i = 0; i < ROWS; i++) {
            all += lanes[i];
        }
        m.sums[row * part + value] = all;
    }
}

void compute(const ggml_compute_params * params, const attention & of) {
    const int64_t batches = of.q->ne[3], tiles = of.tiles(), chunks = of.has_few() ? of.chunks : 1, part = of.partial();
    char * own = (char *) params->wdata + params->ith * of.scratch();
    float * parts = (float *) GGML_PAD((uintptr_t) params->wdata + params->nth * of.scratch(), 64);
    const tile_memory m(of, own);
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    const int64_t units = batches * of.kv_heads * tiles * chunks;
    for (int64_t unit = params->ith; unit < units; unit = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t chunk = unit % chunks, kv_head = unit / chunks % of.kv_heads;
        const int64_t first = unit / chunks / of.kv_heads % tiles * of.tile,
                      batch = unit / chunks / of.kv_heads / tiles;
        const int64_t n = std::min(of.tile, of.queries - first), n_rows = n * of.per;
        for (int64_t row = 0; row < n_rows; row++) {
            const int64_t query = first + row / of.per, head = of.head(kv_head, row);
            const float * from = (const float *) ((const char *) of.q->data + query * of.q->nb[1] + head * of.q->nb[2] +
                                                  batch * of.q->nb[3]);
            float * to = m.queries + row * of.width;
            for (int64_t i = 0; i < of.width; i++) {
                to[i] = i < of.q->ne[0] ? from[i] * of.scale : 0;
            }
            m.cells[row].next = m.cells[row].n = 0;
            if (row % of.per && of.shares_masks()) {
                m.cells[row].next = m.cells[row - 1].next;
            } else if (of.has_few()) {
                m.cells[row].go_to(of.mask ? of.masks(query, head, batch) : nullptr, of.cells, chunk * BLOCKS);
            }
        }
        for (int64_t c = 0; c < (of.has_few() ? 1 : of.chunks); c++) {
            compute_chunk(of, m, batch, kv_head, first, n);
            for (int64_t row = 0; row < n_rows; row++) {
                float * sums = m.sums + row * part;
                if (of.has_few()) {
                    const int64_t query = batch * of.queries + first + row / of.per;
                    const int64_t at = query * of.heads + of.head(kv_head, row);
                    memcpy(parts + (at * chunks + chunk) * part, sums, part * sizeof(float));
                } else if (c == 0) {
                    memcpy(m.all + row * part, sums, part * sizeof(float));
                } else {
                    merge(m.all + row * part, sums, of.value);
                }
            }
        }
        for (int64_t row = 0; row < n_rows && !of.has_few(); row++) {
            finish(of, m.all + row * part, first + row / of.per, of.head(kv_head, row), batch);
        }
    }
    if (!of.has_few()) {
        return;
    }
    ggml_barrier(params->threadpool);
    const int64_t rows = batches * of.queries * of.heads;
    for (int64_t row = rows * params->ith / params->nth; row < rows * (params->ith + 1) / params->nth; row++) {
        float * sums = parts + row * chunks * part;
        for (int64_t chunk = 1; chunk < chunks; chunk++) {
            merge(sums, sums + chunk * part, of.value);
        }
        finish(of, sums, row / of.heads % of.queries, row % of.heads, row / of.heads / of.queries);
    }
}

} // namespace
} // namespace edgespec

size_t edgespec_attention_size(const struct ggml_tensor * op, int threads) {
    const edgespec::attention of(const_cast<ggml_tensor *>(op));
    return threads * of.scratch() + of.shared() + 64;
}

bool edgespec_attention(const struct ggml_compute_params * params, struct ggml_tensor * op) {
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2];
    const bool are_pairs = k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3];
    const bool are_rows = k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type);
    if (params->use_ref || !are_rows || !edgespec_is_on || q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) ||
        !are_pairs) {
        return false;
    }
    edgespec::compute(params, edgespec::attention(op));
    return true;
}

#else

size_t edgespec_attention_size(const struct ggml_tensor *, int) { return 0; }

bool edgespec_attention(const struct ggml_compute_params *, struct ggml_tensor *) { return false; }

#endif
