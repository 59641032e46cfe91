/* libcudart: allocation, copies and what a pointer points at. */
#include "cuda_abi.h"
#include "device.h"
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **address, size_t num_bytes) {
    if (!igpu_gpu()) return runtime_fail(CU_NO_DEVICE);
    if (!num_bytes) {
        *address = NULL;
        return CU_OK;
    }
    return runtime_fail(igpu_allocate(runtime_device(), num_bytes, address) ? CU_OUT_OF_MEMORY : CU_OK);
}

int cudaFree(void *address) {
    if (!address) return CU_OK;
    if (igpu_is_device(address)) return runtime_fail(igpu_free(address) ? CU_INVALID_VALUE : CU_OK);
    return runtime_fail(igpu_host_free(address) ? CU_INVALID_VALUE : CU_OK); /* managed memory */
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (!igpu_gpu()) return runtime_fail(CU_NO_DEVICE);
    *free_bytes = igpu_free_bytes(runtime_device());
    *total_bytes = igpu_gpu()->memory_bytes;
    return CU_OK;
}

/* Memory pools (PYTORCH_ALLOC_CONF=backend:cudaMallocAsync): the pool holds exactly what is allocated from it. */
static size_t pool_used[IGPU_MAX_DEVICES], pool_peak[IGPU_MAX_DEVICES];

int cudaMallocAsync(void **address, size_t num_bytes, void *stream) {
    (void)stream;
    int error = cudaMalloc(address, num_bytes), device = runtime_device();
    void *start;
    size_t size = 0;
    if (!error && *address && !igpu_range(*address, &start, &size)) pool_used[device] += size;
    if (pool_used[device] > pool_peak[device]) pool_peak[device] = pool_used[device];
    return error;
}

int cudaMallocFromPoolAsync(void **address, size_t num_bytes, void *pool, void *stream) {
    (void)pool;
    return cudaMallocAsync(address, num_bytes, stream);
}

int cudaFreeAsync(void *address, void *stream) {
    (void)stream;
    size_t size = 0;
    if (address && !igpu_range(address, NULL, &size)) pool_used[igpu_device_of(address)] -= size;
    return cudaFree(address);
}

int cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = &pool_used[device];
    return CU_OK;
}

int cudaDeviceGetMemPool(void **pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }

int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    size_t device = (size_t)((size_t *)pool - pool_used);
    int high = attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH;
    if (attribute < POOL_RESERVED_CURRENT) memset(value, 0, sizeof(int));
    else *(uint64_t *)value = high ? pool_peak[device] : pool_used[device];
    return CU_OK;
}

int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
    (void)value;
    size_t device = (size_t)((size_t *)pool - pool_used);
    if (attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH) pool_peak[device] = pool_used[device];
    return CU_OK;
}

/* Host memory */
int cudaHostAlloc(void **address, size_t num_bytes, unsigned flags) {
    (void)flags;
    return runtime_fail(igpu_host_allocate(num_bytes, IGPU_PINNED, address) ? CU_OUT_OF_MEMORY : CU_OK);
}

int cudaMallocHost(void **address, size_t num_bytes) { return cudaHostAlloc(address, num_bytes, 0); }

int cudaMallocManaged(void **address, size_t num_bytes, unsigned flags) {
    (void)flags;
    return runtime_fail(igpu_host_allocate(num_bytes, IGPU_MANAGED, address) ? CU_OUT_OF_MEMORY : CU_OK);
}

int cudaFreeHost(void *address) {
    return runtime_fail(address && igpu_host_free(address) ? CU_INVALID_VALUE : CU_OK);
}

int cudaHostRegister(void *address, size_t num_bytes, unsigned flags) {
    (void)flags;
    return runtime_fail(igpu_host_register(address, num_bytes) ? CU_OUT_OF_MEMORY : CU_OK);
}

int cudaHostUnregister(void *address) { return runtime_fail(igpu_host_unregister(address) ? CU_INVALID_VALUE : CU_OK); }

int cudaHostGetDevicePointer(void **device_address, void *address, unsigned flags) {
    (void)flags;
    *device_address = address;
    return CU_OK;
}

int cudaPointerGetAttributes(pointer_attributes *attributes, const void *address) {
    memset(attributes, 0, sizeof *attributes);
    if (igpu_is_device(address)) {
        int device = igpu_device_of(address);
        attributes->type = device < 0 ? MEMORY_UNREGISTERED : MEMORY_DEVICE;
        attributes->device = device < 0 ? runtime_device() : device;
        attributes->device_pointer = device < 0 ? NULL : (void *)(uintptr_t)address;
        return CU_OK;
    }
    enum igpu_host_kind kind = igpu_host_find(address);
    attributes->device = kind == IGPU_NOT_HOST ? -2 : runtime_device(); /* cudaInvalidDeviceId */
    if (kind == IGPU_NOT_HOST) return CU_OK;
    attributes->type = kind == IGPU_MANAGED ? MEMORY_MANAGED : MEMORY_HOST;
    attributes->device_pointer = attributes->host_pointer = (void *)(uintptr_t)address;
    return CU_OK;
}

/* Copies */
int cudaMemcpy(void *to, const void *from, size_t num_bytes, int kind) {
    (void)kind;
    igpu_copy(to, from, num_bytes);
    return CU_OK;
}

int cudaMemcpyAsync(void *to, const void *from, size_t num_bytes, int kind, void *stream) {
    (void)stream;
    return cudaMemcpy(to, from, num_bytes, kind);
}

int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t num_bytes) {
    (void)to_device, (void)from_device;
    return cudaMemcpy(to, from, num_bytes, 0);
}

int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t num_bytes, void *stream) {
    (void)stream;
    return cudaMemcpyPeer(to, to_device, from, from_device, num_bytes);
}

int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind) {
    (void)kind;
    for (size_t row = 0; row < height; row++)
        igpu_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return CU_OK;
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind,
                      void *stream) {
    (void)stream;
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

int cudaMemset(void *to, int value, size_t num_bytes) {
    igpu_fill(to, value, num_bytes);
    return CU_OK;
}

int cudaMemsetAsync(void *to, int value, size_t num_bytes, void *stream) {
    (void)stream;
    return cudaMemset(to, value, num_bytes);
}

/* A handle for another process would have to share the contents: there are none to share. */
int cudaIpcGetMemHandle(void *handle, void *address) {
    (void)handle, (void)address;
    return runtime_fail(CU_NOT_SUPPORTED);
}

int cudaIpcOpenMemHandle(void **address, void *handle, unsigned flags) {
    (void)address, (void)handle, (void)flags;
    return runtime_fail(CU_NOT_SUPPORTED);
}
