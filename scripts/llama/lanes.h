/* Which vectors interleaved.cpp and attention.cpp use. EDGESPEC_LANES is the header for this processor. It is undefined
   if there is none. MSVC is left out on ARM: the header there uses operators on vectors. */
#ifndef EDGESPEC_LANES_H
#define EDGESPEC_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define EDGESPEC_LANES "lanes_x86.h"
#elif defined(__aarch64__) && defined(__ARM_NEON) && defined(__GNUC__)
#include <arm_neon.h>
#define EDGESPEC_LANES "lanes_arm.h"
#endif

/* Before loops with a constant number of turns, whose variables are to stay in registers, and before those of which one
   turn is long. */
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#define ROLLED _Pragma("nounroll")
#elif defined(__GNUC__)
#define UNROLLED _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#else
#define UNROLLED
#define ROLLED
#endif

#endif
