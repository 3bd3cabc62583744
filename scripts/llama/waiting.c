#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kernels.h"

#include "ggml.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#elif defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

/* Threads that sleep, of all pools: while there are none, nobody has to be woken, which takes a system call. */
#ifdef _MSC_VER
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

#ifdef _WIN32
static volatile LONG sleepers;
#define LOAD(word) InterlockedCompareExchange((volatile LONG *) (word), 0, 0)
#define ADD(word, n) InterlockedExchangeAdd(word, n)
#else
static int32_t sleepers;
#define LOAD(word) __atomic_load_n((const int32_t *) (word), __ATOMIC_SEQ_CST)
#define ADD(word, n) __atomic_fetch_add(word, n, __ATOMIC_SEQ_CST)
#endif

#if !defined(_WIN32) && !defined(__linux__)
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
#endif

static inline void relax(void) {
#if defined(_WIN32)
    YieldProcessor();
#elif defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* Sleeps until the word is woken, unless it has another value already; may return early. */
static void sleep_on(void * word, int32_t value) {
#if defined(_WIN32)
    WaitOnAddress(word, &value, sizeof(value), INFINITE);
#elif defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
    pthread_mutex_lock(&mutex);
    while (LOAD(word) == value) {
        pthread_cond_wait(&changed, &mutex);
    }
    pthread_mutex_unlock(&mutex);
#endif
}

/* The processor of this thread, where the system can say it at almost no cost. */
static inline int processor(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

/* The processor of the thread that last woke others. */
static volatile int waker = -1;

static bool spins(void * word, int32_t value) {
    const int64_t started_us = ggml_time_us();
    do {
        for (int i = 0; i < EDGESPEC_SPINS; i++) {
            if (LOAD(word) != value) {
                return true;
            }
            relax();
        }
    } while (ggml_time_us() - started_us < EDGESPEC_SPIN_US);
    return false;
}

void edgespec_await_change(void * word, int32_t value) {
    static THREAD_LOCAL bool is_stacked; /* on the same processor as the thread that it waits for: spinning delays it */
    if (!is_stacked && spins(word, value)) {
        return;
    }
    const int at = processor();
    ADD(&sleepers, 1); /* before the word is compared again: whoever changes it then knows of this thread */
    while (LOAD(word) == value) {
        sleep_on(word, value);
    }
    ADD(&sleepers, -1);
    is_stacked = at >= 0 && waker == at;
}

void edgespec_wake(void * word) {
    if (LOAD(&sleepers) == 0) {
        return;
    }
    waker = processor();
#if defined(_WIN32)
    WakeByAddressAll(word);
#elif defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
    (void) word;
    pthread_mutex_lock(&mutex); /* else a thread that has compared the word, but does not sleep yet, would sleep on */
    pthread_mutex_unlock(&mutex);
    pthread_cond_broadcast(&changed);
#endif
}
