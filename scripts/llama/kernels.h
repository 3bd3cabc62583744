/* What edgespec's build adds to llama.cpp on CPUs: bounds on where kernels change with the number of rows of a pass,
   kernels of its own with the same bits, flash attention in wide passes alone, threads that sleep while they wait for
   long, and huge pages.

   A pass over several tokens should give each of them the same bits as a pass of its own: then a draft that is verified
   in one pass changes no answer. Most kernels do; five take another order of sums from some number of rows on, and
   here that number can be set. llama.cpp's own values are in kernels.c, edgespec sets others for the model it has
   loaded (edgespec/llama/kernels.py). kernels.cmake puts the calls in place. */
#ifndef EDGESPEC_KERNELS_H
#define EDGESPEC_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define EDGESPEC_EXPORT __declspec(dllexport)
#else
#define EDGESPEC_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EDGESPEC_SGEMM_FLOAT, /* fewest rows that llamafile_sgemm takes of F16, BF16 and F32, attention included */
    EDGESPEC_SGEMM_QUANT, /* the same of quantised weights; above 2, ARM's kernels for two rows at once are not used */
    EDGESPEC_TILED,       /* fewest rows that the tiled kernels of K- and IQ-quants take */
    EDGESPEC_SPLIT_KV,    /* fewest cells that flash attention of a single row shares out among the threads */
    EDGESPEC_OWN,         /* 1: edgespec_chunk is used; results do not change */
    EDGESPEC_BOUNDS
};

/* The version of these additions, in the version of the wheels too (0.3.36+edgespec.6). edgespec uses no other one. */
enum { EDGESPEC_VERSION = 6 };
extern EDGESPEC_EXPORT const int32_t edgespec_version;

extern EDGESPEC_EXPORT int32_t edgespec_kernel_bounds[EDGESPEC_BOUNDS];

/* Fewest rows from which passes use flash attention in a context that has it switched off, with keys and values in F16.
   Part of libllama, where graphs are built; the other numbers are part of the CPU backend. */
extern EDGESPEC_EXPORT int32_t edgespec_flash_rows;

struct ggml_compute_params;
struct ggml_tensor;

/* From so many rows on, llamafile_sgemm is as fast as edgespec_chunk or faster. */
enum { EDGESPEC_WIDE = 64 };

/* Returns true if so many rows of activations are kept from llamafile_sgemm, with rows of k weights of this type. */
bool edgespec_is_narrow(int type, int64_t k, int64_t rows);

/* Sets the number of chunks in which threads compute a matrix product. All columns of a matrix belong to the same
   chunk, so that its weights are read and unpacked once. Leaves the numbers unchanged for types without a kernel, for
   64 columns or more, and on NUMA machines. */
void edgespec_share_out(const struct ggml_tensor * src0, const struct ggml_tensor * src1, int threads,
                        int64_t * row_chunks, int64_t * column_chunks);

/* Returns which of `chunks` parts of a matrix comes as number `turn`, so that a thread's chunks follow each other in
   memory as long as all threads are equally fast: what a kernel prefetches beyond the end of a chunk would otherwise be
   read into the cache of the wrong core. */
int64_t edgespec_chunk_of_turn(int64_t turn, int64_t chunks, int64_t threads);

/* Multiplies `rows` of weights by `columns` of activations, all k elements long: C[j][i] is row i with column j. The
   results have the bits of ggml_vec_dot_..., but weights are read and unpacked once for several columns. Rows are nb_a
   bytes apart. Returns false for types and processors without a kernel. */
EDGESPEC_EXPORT bool edgespec_chunk(int type, int64_t k, const void * A, size_t nb_a, int64_t rows,
                                    const char * const * B, int64_t columns, float * const * C);

/* Computes a chunk of a matrix product by edgespec_chunk, attention included: columns of several heads that share their
   keys and values are multiplied together. Returns false if ggml computes it, because there is no kernel or it is not
   faster. */
bool edgespec_mul_mat(const struct ggml_compute_params * params, struct ggml_tensor * dst, int64_t row, int64_t row_end,
                      int64_t column, int64_t column_end);

/* The same with the `matrix` of an expert. `places` has, for each column, the position of the expert in the token's list
   of experts, and the token. */
bool edgespec_mul_mat_id(struct ggml_tensor * dst, const void * matrix, const int32_t (*places)[2], const void * packed,
                         int64_t row, int64_t row_end, int64_t column, int64_t column_end);

/* Copies a transposed tensor of F16, which ggml copies one element at a time: the values of a layer, in each wide pass
   with flash attention. Returns false for all other tensors. */
bool edgespec_transpose(const struct ggml_compute_params * params, struct ggml_tensor * dst);

/* Returns when the word no longer has this value. Threads of a pass wait for each other hundreds of times, mostly for a
   few microseconds, which is less than it takes to wake a thread: so they spin, for at most EDGESPEC_SPIN_US. Then they
   sleep, and leave the processor to those for whom they wait, or to other programs. A thread that spins longer uses up
   its share of a busy processor, and one that yields instead gives it away. */
enum { EDGESPEC_SPIN_US = 50, EDGESPEC_SPINS = 64 /* between two looks at the clock */ };
EDGESPEC_EXPORT void edgespec_await_change(void * word, int32_t value);

/* Wakes all threads that wait for a change of the word; to be called after the change. */
EDGESPEC_EXPORT void edgespec_wake(void * word);

/* posix_memalign, for large buffers in huge pages where Linux has them: a pass reads all weights, and looking up where
   each of many small pages lies takes 5 to 8 % of it. */
int edgespec_memalign(void ** memory, size_t alignment, size_t size);

/* Computes flash attention (attention.cpp), whose bits do not depend on the width of a pass. Returns false if ggml
   computes it. The size is that of its work memory. */
struct ggml_compute_params;
bool edgespec_attention(const struct ggml_compute_params * params, struct ggml_tensor * op);
size_t edgespec_attention_size(const struct ggml_tensor * op, int threads);

/* The buffer type of interleaved weights (interleaved.cpp), or null on processors without kernels for them. */
struct ggml_backend_buffer_type;
struct ggml_backend_buffer_type * edgespec_interleaved_buffer_type(void);

/* 1 if weights are interleaved. A program that sets it to 0 loads models with the layouts of llama.cpp. */
extern EDGESPEC_EXPORT int32_t edgespec_interleaves;

/* Multiplies `rows` of weights, as ggml stores them, by columns of k activations, as passes do: y[j][i] is row i with
   column j. For tests. */
EDGESPEC_EXPORT void edgespec_multiply(int type, int64_t k, int64_t rows, const void * weights, int64_t columns,
                                       const float * x, float * y);

#ifdef __cplusplus
}
#endif
#endif
