/* What edgespec's build adds to llama.cpp on CPUs: products and attention whose bits do not depend on the number of
   tokens in a pass (interleaved.cpp, attention.cpp), threads that sleep while they wait for long, and huge pages.

   A pass over several tokens gives each of them the bits of a pass of its own. So a draft that is verified in one pass
   changes no answer, a prompt can be read in pieces of any size, and prompts and answers can share passes. kernels.cmake
   puts the calls in place. */
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

/* The version of these additions, in the version of the wheels too (0.3.36+edgespec.7). edgespec uses no other one. */
enum { EDGESPEC_VERSION = 7 };
extern EDGESPEC_EXPORT const int32_t edgespec_version;

/* 1 if products and attention are computed here, 0 on processors without these kernels. A program that sets it to 0
   before it loads a model gets those of llama.cpp. */
extern EDGESPEC_EXPORT int32_t edgespec_is_on;

struct ggml_compute_params;
struct ggml_tensor;

/* Computes the products of an operation, of which each element is a sum in one order, as one of the threads. Returns
   false if ggml computes them. The size is that of its work memory. */
bool edgespec_product(const struct ggml_compute_params * params, struct ggml_tensor * op);
size_t edgespec_product_size(const struct ggml_tensor * op, int threads);

/* The same for flash attention. */
bool edgespec_attention(const struct ggml_compute_params * params, struct ggml_tensor * op);
size_t edgespec_attention_size(const struct ggml_tensor * op, int threads);

/* The buffer type of weights that are interleaved when they are loaded, or null on processors without these kernels. */
struct ggml_backend_buffer_type;
struct ggml_backend_buffer_type * edgespec_interleaved_buffer_type(void);

/* Multiplies `rows` of weights, as ggml stores them, by columns of k activations, as passes do: y[j][i] is row i with
   column j. For tests. */
EDGESPEC_EXPORT void edgespec_multiply(int type, int64_t k, int64_t rows, const void * weights, int64_t columns,
                                       const float * x, float * y);

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

#ifdef __cplusplus
}
#endif
#endif
