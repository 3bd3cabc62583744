/* Decode a model with the libraries of a wheel, on a system without Python: decode MODEL LIBRARY

   LIBRARY is that of a CPU variant. Generates 32 tokens greedily, one in a pass, then decodes the same tokens in passes
   of 2 to 8 and compares all logits bit by bit, with the bounds of scripts/llama/kernels.h out of their reach. Prints
   the tokens. Exit status 1 if the model cannot be decoded or a logit differs, 2 if this processor cannot run the
   variant. scripts/check_release.py compiles this program and runs it under wine. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "llama.h"

enum { GENERATED = 32, MOST = 64 };

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void * symbol(const char * library, const char * name) {
#ifdef _WIN32
    HMODULE handle = LoadLibraryA(library);
    return handle ? (void *) GetProcAddress(handle, name) : NULL;
#else
    void * handle = dlopen(library, RTLD_NOW);
    return handle ? dlsym(handle, name) : NULL;
#endif
}

/* Decode n tokens from a position on, and return the logits of all of them. */
static void decode(struct llama_context * context, const llama_token * tokens, int start, int n, int n_vocab, float * to) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[start + i];
        batch.pos[i] = start + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    batch.n_tokens = n;
    if (llama_decode(context, batch)) {
        fprintf(stderr, "decoding failed\n");
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        memcpy(to + (size_t) (start + i) * n_vocab, llama_get_logits_ith(context, i), n_vocab * sizeof(float));
    }
    llama_batch_free(batch);
}

int main(int argc, char ** argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: decode MODEL LIBRARY\n");
        return 1;
    }
    llama_log_set(quiet, NULL);
    int (*score)(void) = (int (*)(void)) symbol(argv[2], "ggml_backend_score");
    void * bounds = symbol(argv[2], "edgespec_kernel_bounds");
    if (!score || !bounds) {
        fprintf(stderr, "%s cannot be loaded, or is no CPU variant of edgespec\n", argv[2]);
        return 1;
    }
    if (!score()) {
        return 2;
    }
    if (!ggml_backend_load(argv[2])) {
        return 1;
    }
    const int32_t exact[] = {1 << 30, 1 << 30, 1 << 30, INT32_MAX, 1};
    memcpy(bounds, exact, sizeof(exact));
    struct llama_model_params loading = llama_model_default_params();
    loading.use_extra_bufts = false;
    struct llama_model * model = llama_model_load_from_file(argv[1], loading);
    if (!model) {
        return 1;
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_outputs_max = MOST;
    params.n_threads = params.n_threads_batch = 2;
    struct llama_context * context = llama_init_from_model(model, params);
    if (!context) {
        return 1;
    }
    const struct llama_vocab * vocab = llama_model_get_vocab(model);
    const int n_vocab = llama_vocab_n_tokens(vocab);
    float * one = calloc((size_t) MOST * n_vocab, sizeof(float)), * several = calloc((size_t) MOST * n_vocab, sizeof(float));
    llama_token tokens[MOST];
    const char * prompt = "def quicksort(xs):";
    int n = llama_tokenize(vocab, prompt, (int) strlen(prompt), tokens, MOST - GENERATED, true, true);
    const int end = n + GENERATED;
    for (int i = 0; i < end; i++) {
        decode(context, tokens, i, 1, n_vocab, one);
        if (i + 1 >= n && i + 1 < end) {
            const float * row = one + (size_t) i * n_vocab;
            llama_token best = 0;
            for (int j = 1; j < n_vocab; j++) {
                best = row[j] > row[best] ? j : best;
            }
            tokens[i + 1] = best;
            printf("%d ", best);
        }
    }
    int differ = 0;
    for (int width = 2; width <= 8; width++) {
        llama_memory_clear(llama_get_memory(context), true);
        for (int start = 0; start < end; start += width) {
            decode(context, tokens, start, width < end - start ? width : end - start, n_vocab, several);
        }
        differ += memcmp(one, several, (size_t) end * n_vocab * sizeof(float)) != 0;
    }
    printf("\nwidths that differ: %d of 7\n", differ);
    return differ != 0;
}
