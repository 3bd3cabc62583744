# Read after each project() of the build of llama-cpp-python (CMAKE_PROJECT_INCLUDE): leaves out what edgespec does not
# use, adds the RPC backend, and puts what kernels.h tells of into the CPU backend. The sources are those of the pinned version; another one
# stops the build here instead of giving a library that silently lacks a bound.

if(PROJECT_NAME STREQUAL "llama_cpp")
    set(LLAVA_BUILD OFF) # images and sound
elseif(PROJECT_NAME STREQUAL "llama.cpp")
    set(LLAMA_BUILD_COMMON OFF) # parsers and HTTP client of llama.cpp's own programs
    if(NOT DEFINED GGML_RPC)
        set(GGML_RPC ON) # layers on other machines: 3 s of the build and 190 KB
    endif()
endif()

if(NOT PROJECT_NAME STREQUAL "ggml")
    return()
endif()

set(EDGESPEC_KERNELS ${CMAKE_CURRENT_LIST_DIR})

function(edgespec_replace file count old new)
    file(READ ${file} text)
    string(FIND "${text}" "${new}" done)
    if(done GREATER -1)
        return() # configured before
    endif()
    string(REPLACE "${old}" "" without "${text}")
    string(LENGTH "${text}" before)
    string(LENGTH "${without}" after)
    string(LENGTH "${old}" length)
    math(EXPR expected "${before} - ${count} * ${length}")
    if(NOT after EQUAL expected)
        message(FATAL_ERROR "edgespec: '${old}' is not ${count} times in ${file}; is this another version of llama.cpp?")
    endif()
    string(REPLACE "${old}" "${new}" text "${text}")
    file(WRITE ${file} "#include \"${EDGESPEC_KERNELS}/kernels.h\"\n${text}")
endfunction()

function(edgespec_bound_kernels)
    if(NOT TARGET ggml-cpu)
        return() # GGML_CPU_ALL_VARIANTS: a build of the user's own design
    endif()
    set(cpu ${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu)
    target_sources(ggml-cpu PRIVATE ${EDGESPEC_KERNELS}/kernels.c)
    edgespec_replace(${cpu}/ggml-cpu.c 2 "if (!llamafile_sgemm(params," [[if (!(edgespec_is_narrow(src0->type, ne11, ne12 * ne13)
                        ? edgespec_narrow : llamafile_sgemm)(params,]])
    edgespec_replace(${cpu}/ggml-cpu.c 1 "
    // attempt to reduce false-sharing (does not seem to make a difference)
    // 16 * 2, accounting for mmla kernels" [[
    if (ne12 * ne13 == 1 && edgespec_chunk(type, ne00, (const char *) src0->data + ir0_start * nb01, nb01,
            ir0_end - ir0_start, (const char *) wdata + ir1_start * src1_col_stride, src1_col_stride,
            ir1_end - ir1_start, (char *) dst->data + ir1_start * nb1 + ir0_start * sizeof(float), nb1)) {
        return;
    }
]])
    edgespec_replace(${cpu}/ggml-cpu.c 1 "#ifdef GGML_USE_OPENMP
    #pragma omp barrier
#else
" "#if 1
    int n_waits = 0;
")
    edgespec_replace(${cpu}/ggml-cpu.c 1 "        ggml_thread_cpu_relax();
    }

    // exit barrier" "        if (++n_waits < EDGESPEC_SPINS) {
            ggml_thread_cpu_relax();
        } else {
            edgespec_yield();
        }
    }

    // exit barrier")
    edgespec_replace(${cpu}/tiled/tiled.cpp 1 "return rows >= 8 ||"
        "return rows >= edgespec_kernel_bounds[EDGESPEC_TILED] ||")
    edgespec_replace(${cpu}/tiled/tiled.cpp 1 "ggml_tiled_min_batch(cne1)"
        "ggml_tiled_min_batch(edgespec_kernel_bounds[EDGESPEC_TILED] > 8 ? dst->ne[2] : cne1)") # the tokens of the pass
    if(NOT WIN32)
        target_sources(ggml-base PRIVATE ${EDGESPEC_KERNELS}/memory.c)
        edgespec_replace(${CMAKE_CURRENT_SOURCE_DIR}/src/ggml.c 1 "= posix_memalign(" "= edgespec_memalign(")
    endif()
    edgespec_replace(${cpu}/ops.cpp 1 "nek1 >= 512;" "nek1 >= edgespec_kernel_bounds[EDGESPEC_SPLIT_KV];")
endfunction()

cmake_language(DEFER CALL edgespec_bound_kernels)
