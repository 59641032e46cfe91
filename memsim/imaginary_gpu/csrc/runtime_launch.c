/* libcudart: kernels are registered and launched, and nothing runs. */
#include "cuda_abi.h"
#include "device.h"
#include "runtime.h"
#include "architectures.h"
#include <stdlib.h>
#include <string.h>

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

/* Registration: the compiler's code hands over its kernels when a library is loaded. */
void **__cudaRegisterFatBinary(void *binary) {
    void **handle = malloc(sizeof *handle);
    if (handle) *handle = binary;
    return handle;
}

void __cudaUnregisterFatBinary(void **handle) { free(handle); }

void __cudaRegisterFunction(void **handle, const void *function) {
    if (handle) architectures_register(function, *handle);
}

char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

int __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)(uintptr_t)function;
    return CU_OK;
}

int cudaGetKernel(void **kernel, const void *function) { return __cudaGetKernel(kernel, function); }

static __thread struct {
    dim3 grid, block;
    size_t shared_bytes;
    void *stream;
} configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared_bytes = shared_bytes;
    configuration.stream = stream;
    return 0;
}

int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void **stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *stream = configuration.stream;
    return CU_OK;
}

/* Kernel libraries loaded at run time */
int cudaLibraryLoadData(void **library) {
    *library = malloc(64);
    return CU_OK;
}

int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)name;
    *kernel = library;
    return CU_OK;
}

/* Attributes */
int cudaFuncGetAttributes(function_attributes *attributes, const void *function) {
    const igpu_settings *gpu = igpu_gpu();
    if (!gpu) return runtime_fail(CU_NO_DEVICE);
    memset(attributes, 0, sizeof *attributes);
    attributes->max_threads_per_block = 1024;
    attributes->num_registers = 32;
    architectures_choose(function, gpu->major * 10 + gpu->minor, &attributes->binary_version, &attributes->ptx_version);
    attributes->max_dynamic_shared_bytes = 49152;
    attributes->preferred_shared_carveout = -1;
    return CU_OK;
}

/* A kernel of 32 registers a thread and the given shared memory. */
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int block_size,
                                                           size_t shared_bytes, unsigned flags) {
    const igpu_settings *gpu = igpu_gpu();
    (void)function, (void)flags;
    if (!gpu) return runtime_fail(CU_NO_DEVICE);
    int by_threads = gpu->max_threads_per_multiprocessor / (block_size > 0 ? block_size : 1);
    size_t reserved = shared_bytes + (gpu->major >= 8 ? 1024 : 0);
    int by_memory = reserved ? (int)(gpu->shared_bytes_per_multiprocessor / reserved) : by_threads;
    *blocks = by_threads < by_memory ? by_threads : by_memory;
    if (*blocks > gpu->max_blocks_per_multiprocessor) *blocks = gpu->max_blocks_per_multiprocessor;
    return CU_OK;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size, size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

int cudaOccupancyMaxPotentialClusterSize(int *size, const void *function, const void *config) {
    (void)function, (void)config;
    *size = 8;
    return CU_OK;
}

int cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const void *config) {
    (void)function, (void)config;
    *clusters = igpu_gpu() ? igpu_gpu()->num_multiprocessors / 2 : 0;
    return CU_OK;
}

/* Device symbols: 64 KiB of constant memory, all zero, shared by everybody. */
int cudaGetSymbolAddress(void **address, const void *symbol) {
    static void *constant_memory;
    (void)symbol;
    if (!constant_memory && igpu_host_allocate(65536, IGPU_MANAGED, &constant_memory)) return runtime_fail(CU_OUT_OF_MEMORY);
    *address = constant_memory;
    return CU_OK;
}

/* The driver's functions by name. A name that is not there is no error: `status` says so. */
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *status) {
    cuGetProcAddress_v2(name, function, (int)version, flags, status);
    return CU_OK;
}

int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDA_VERSION, flags, status);
}
