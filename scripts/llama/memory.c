#define _GNU_SOURCE

#include "kernels.h"

#include <stdlib.h>

#ifdef __linux__
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, WORTH = 4 * HUGE_PAGE };
#endif

int edgespec_memalign(void ** memory, size_t alignment, size_t size) {
#ifdef __linux__
    if (size >= WORTH) {
        const int error = posix_memalign(memory, HUGE_PAGE, size);
        if (!error) {
            madvise(*memory, size, MADV_HUGEPAGE); /* where there are none, it stays as it was */
        }
        return error;
    }
#endif
    return posix_memalign(memory, alignment, size);
}
