/* Stands between llama.cpp and a Vulkan driver, to fake what real devices do (LD_PRELOAD; needs no Vulkan headers).
 *
 * Software devices look like a graphics card. Environment variables add faults:
 *   FAKE_GPU_HEAP=N         memory heaps of at most N bytes are reported
 *   FAKE_GPU_ALLOCATIONS=N  allocations after the first N fail for lack of memory
 *   FAKE_GPU_SUBMITS=N      the device is lost after N submitted batches of work
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef Function (*Lookup)(void * handle, const char * name);
typedef struct Next { uint32_t type; struct Next * next; } Next; /* how the structures of extensible calls begin */
typedef struct { uint32_t versions_and_ids[4], device_type; } Properties;
typedef struct { uint64_t size; uint32_t flags; } Heap;
typedef struct { uint32_t n_types, types[32][2], n_heaps; Heap heaps[16]; } Memory;
typedef struct { Next head; uint64_t budget[16], usage[16]; } Budget;

enum { DISCRETE_GPU = 2, OUT_OF_DEVICE_MEMORY = -2, DEVICE_LOST = -4, BUDGET = 1000237000 };

static Lookup of_instance;
static void * any_instance;

static Function real(const char * name) {
    return of_instance(any_instance, name);
}

static uint64_t limit(const char * name) {
    const char * value = getenv(name);
    return value ? strtoull(value, NULL, 10) : UINT64_MAX;
}

static void at_most(uint64_t * value, uint64_t most) {
    *value = *value < most ? *value : most;
}

static void get_properties(void * device, void * all) {
    ((void (*)(void *, void *)) real("vkGetPhysicalDeviceProperties"))(device, all);
    ((Properties *) all)->device_type = DISCRETE_GPU;
}

static void get_properties_2(void * device, Next * all) {
    ((void (*)(void *, Next *)) real("vkGetPhysicalDeviceProperties2"))(device, all);
    ((Properties *) (all + 1))->device_type = DISCRETE_GPU;
}

static void shrink(Memory * memory) {
    for (uint32_t i = 0; i < memory->n_heaps; i++) {
        at_most(&memory->heaps[i].size, limit("FAKE_GPU_HEAP"));
    }
}

static void get_memory(void * device, Memory * memory) {
    ((void (*)(void *, Memory *)) real("vkGetPhysicalDeviceMemoryProperties"))(device, memory);
    shrink(memory);
}

static void get_memory_2(void * device, Next * all) {
    ((void (*)(void *, Next *)) real("vkGetPhysicalDeviceMemoryProperties2"))(device, all);
    shrink((Memory *) (all + 1));
    for (Next * next = all->next; next; next = next->next) {
        for (int i = 0; i < 16 && next->type == BUDGET; i++) {
            at_most(&((Budget *) next)->budget[i], limit("FAKE_GPU_HEAP"));
        }
    }
}

static int allocate(void * device, const void * info, const void * allocator, void * memory) {
    static _Atomic uint64_t n;
    if (n++ >= limit("FAKE_GPU_ALLOCATIONS")) {
        return OUT_OF_DEVICE_MEMORY;
    }
    return ((int (*)(void *, const void *, const void *, void *)) real("vkAllocateMemory"))(
        device, info, allocator, memory);
}

static int submit(void * queue, uint32_t count, const void * submits, void * fence) {
    static _Atomic uint64_t n;
    if (n++ >= limit("FAKE_GPU_SUBMITS")) {
        return DEVICE_LOST;
    }
    return ((int (*)(void *, uint32_t, const void *, void *)) real("vkQueueSubmit"))(queue, count, submits, fence);
}

static const struct { const char * name; Function function; } FAKES[] = {
    { "vkGetPhysicalDeviceProperties", (Function) get_properties },
    { "vkGetPhysicalDeviceProperties2", (Function) get_properties_2 },
    { "vkGetPhysicalDeviceMemoryProperties", (Function) get_memory },
    { "vkGetPhysicalDeviceMemoryProperties2", (Function) get_memory_2 },
    { "vkAllocateMemory", (Function) allocate },
    { "vkQueueSubmit", (Function) submit },
};

/* Vulkan's loader has a function of this name, through which llama.cpp finds all others. */
Function vkGetInstanceProcAddr(void * instance, const char * name) {
    if (!of_instance) {
        of_instance = (Lookup) dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr");
    }
    if (instance) {
        any_instance = instance;
    }
    for (size_t i = 0; instance && i < sizeof FAKES / sizeof *FAKES; i++) {
        if (!strcmp(name, FAKES[i].name)) {
            return FAKES[i].function;
        }
    }
    return of_instance(instance, name);
}
