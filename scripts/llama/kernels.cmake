# Read after each project() of the build of llama-cpp-python (CMAKE_PROJECT_INCLUDE): leaves out what edgespec does not
# use, adds the RPC backend, lets a context keep several graphs (graphs.h), and adds edgespec's kernels to the CPU backend,
# or to each of its variants in a portable build (GGML_CPU_ALL_VARIANTS). The sources are those of the pinned version. With
# another version the build stops here, if a place that is to be changed is not found.

set(EDGESPEC_KERNELS ${CMAKE_CURRENT_LIST_DIR})

# Replaces what occurs `count` times in a file, which then includes one of the headers here.
function(edgespec_replace file header count old new)
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
    set(include "#include \"${EDGESPEC_KERNELS}/${header}\"\n")
    string(FIND "${text}" "${include}" has_header)
    if(has_header EQUAL -1)
        string(PREPEND text "${include}")
    endif()
    file(WRITE ${file} "${text}")
endfunction()

if(PROJECT_NAME STREQUAL "llama_cpp")
    set(MTMD_VIDEO OFF CACHE BOOL "" FORCE) # mtmd, which reads images, would start ffmpeg for videos
    set(CMAKE_PLATFORM_NO_VERSIONED_SONAME ON) # a wheel has no symbolic links: it would hold each library three times
elseif(PROJECT_NAME STREQUAL "llama.cpp")
    set(GGML_BLAS OFF CACHE BOOL "" FORCE) # it would multiply in another order, if there are many tokens
    set(GGML_ACCELERATE OFF CACHE BOOL "" FORCE)
    set(LLAMA_BUILD_COMMON OFF) # parsers and HTTP client of llama.cpp's own programs
    if(NOT DEFINED GGML_RPC)
        set(GGML_RPC ON) # layers on other machines: 3 s of the build and 190 KB
    endif()
    set(context ${CMAKE_CURRENT_SOURCE_DIR}/src/llama-context)
    edgespec_replace(${context}.h graphs.h 1 "    ggml_backend_sched_ptr sched;
" "    ggml_backend_sched_ptr sched;
    edgespec::kept_graphs kept_graphs;
")
    edgespec_replace(${context}.cpp graphs.h 1 "    auto * res = get_gf_res_prev();
    auto * gf  = res->get_gf();
" "    // Without flash attention each graph would have room for all scores. A scheduler takes 20 KB for each node and leaf of
    // a graph, so it is made for twice as many as the nodes of the widest pass.
    if (backend_ptrs.size() == 1 && cparams.flash_attn && !graph_reuse_disable) {
        kept_graphs.choose({sched, gf_res_prev[1], gf_res_prev_active}, ubatch.n_tokens, n_outputs > 0,
            graph_max_nodes(edgespec::kept_graphs::NARROW), [&] {
                return ggml_backend_sched_ptr(ggml_backend_sched_new(backend_ptrs.data(), backend_buft.data(), 1,
                    1024 + 2 * ggml_graph_n_nodes(gf_res_reserve->get_gf()), false, cparams.op_offload));
            });
    }

    auto * res = get_gf_res_prev();
    auto * gf  = res->get_gf();
")
    edgespec_replace(${context}.cpp graphs.h 1 "    // when training, ggml_opt allocates extra buffers through"
        "    kept_graphs.use_first({sched, gf_res_prev[1], gf_res_prev_active});

    // when training, ggml_opt allocates extra buffers through")
endif()

if(NOT PROJECT_NAME STREQUAL "ggml")
    return()
endif()

# The variants of a portable build. Of llama.cpp's list, one for each set of instructions that the kernels for weights
# use; docs/install.md says what each gains.
set(EDGESPEC_VARIANTS x64 sse42 sandybridge haswell alderlake skylakex cascadelake armv8.0_1 armv8.2_1 apple_m1)

if(GGML_CPU_ALL_VARIANTS)
    file(READ ${CMAKE_CURRENT_SOURCE_DIR}/src/CMakeLists.txt before)
    set(text "${before}")
    string(REGEX MATCHALL "ggml_add_cpu_backend_variant\\([a-z0-9_.]+" known "${text}")
    foreach(call IN LISTS known)
        string(REPLACE "ggml_add_cpu_backend_variant(" "" variant ${call})
        if(NOT variant IN_LIST EDGESPEC_VARIANTS)
            string(REGEX REPLACE "ggml_add_cpu_backend_variant\\(${variant}[ )][^\n]*" "# left out: ${variant}" text "${text}")
        endif()
    endforeach()
    if(NOT text STREQUAL before) # else each build would configure again
        file(WRITE ${CMAKE_CURRENT_SOURCE_DIR}/src/CMakeLists.txt "${text}")
    endif()
endif()

if(MINGW) # The headers leave it to the linker to export all symbols, those of the C library included.
    foreach(header include/ggml.h include/ggml-backend.h ../include/llama.h ../tools/mtmd/mtmd.h)
        file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${header} text)
        string(REPLACE "defined(_WIN32) && !defined(__MINGW32__)" "defined(_WIN32)" changed "${text}")
        if(NOT changed STREQUAL text) # else all would be compiled again
            file(WRITE ${CMAKE_CURRENT_SOURCE_DIR}/${header} "${changed}")
        endif()
    endforeach()
endif()

function(edgespec_add_kernels)
    set(cpu ${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu)
    set(added ${EDGESPEC_KERNELS}/interleaved.cpp ${EDGESPEC_KERNELS}/attention.cpp ${EDGESPEC_KERNELS}/waiting.c)
    set(libraries $<$<BOOL:${WIN32}>:synchronization>)
    if(TARGET ggml-cpu)
        target_sources(ggml-cpu PRIVATE ${added})
        target_link_libraries(ggml-cpu PRIVATE ${libraries})
    else()
        set(found FALSE)
        foreach(variant IN LISTS EDGESPEC_VARIANTS)
            if(TARGET ggml-cpu-${variant})
                set(found TRUE)
                target_sources(ggml-cpu-${variant} PRIVATE ${added})
                target_link_libraries(ggml-cpu-${variant} PRIVATE ${libraries})
                llama_cpp_python_install_target(ggml-cpu-${variant})
            endif()
        endforeach()
        if(NOT found)
            message(FATAL_ERROR "edgespec: none of the variants is for this processor: ${EDGESPEC_VARIANTS}")
        endif()
    endif()
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 1 "if (ggml_compute_forward_mul_mat_tiled(params, dst)) {"
        "if (edgespec_product(params, dst) || ggml_compute_forward_mul_mat_tiled(params, dst)) {")
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 1 "                ggml_compute_forward_mul_mat_id(params, tensor);"
        "                if (!edgespec_product(params, tensor)) {
                    ggml_compute_forward_mul_mat_id(params, tensor);
                }")
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 2 "cur += ggml_tiled_wdata_size(n_tasks, node);"
        "cur = MAX(cur + ggml_tiled_wdata_size(n_tasks, node), edgespec_product_size(node, n_tasks));")
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 1 "#ifdef GGML_USE_OPENMP
    #pragma omp barrier
#else
" "#if 1 // in place of OpenMP's barrier
")
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 1 "(&tp->n_barrier_passed, 1, memory_order_seq_cst);
" "(&tp->n_barrier_passed, 1, memory_order_seq_cst);
        edgespec_wake((void *) &tp->n_barrier_passed);
")
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 1 "    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {
        ggml_thread_cpu_relax();
    }
" "    edgespec_await_change((void *) &tp->n_barrier_passed, n_passed);
")
    edgespec_replace(${cpu}/ggml-cpu.c kernels.h 1 "cur += MAX(prefill, decode);"
        "cur += MAX(MAX(prefill, decode), edgespec_attention_size(node, n_tasks));")
    edgespec_replace(${cpu}/ops.cpp kernels.h 1 "        ggml_tensor * dst) {
    switch (dst->op_params[3]) {
        case GGML_PREC_DEFAULT:
        case GGML_PREC_F32:
            {
                // uses F32 accumulators" "        ggml_tensor * dst) {
    if (edgespec_attention(params, dst)) {
        return;
    }
    switch (dst->op_params[3]) {
        case GGML_PREC_DEFAULT:
        case GGML_PREC_F32:
            {
                // uses F32 accumulators")
    edgespec_replace(${cpu}/ggml-cpu.cpp kernels.h 1 "        std::vector<ggml_backend_buffer_type_t> bufts;
" "        std::vector<ggml_backend_buffer_type_t> bufts;
        if (edgespec_interleaved_buffer_type()) {
            bufts.push_back(edgespec_interleaved_buffer_type());
        }
")
    if(NOT WIN32)
        target_sources(ggml-base PRIVATE ${EDGESPEC_KERNELS}/memory.c)
        edgespec_replace(${CMAKE_CURRENT_SOURCE_DIR}/src/ggml.c kernels.h 1 "= posix_memalign(" "= edgespec_memalign(")
    endif()
endfunction()

cmake_language(DEFER CALL edgespec_add_kernels)
