/* libcudart: which devices there are and what they are like. */
#include "cuda_abi.h"
#include "device.h"
#include "runtime.h"
#include <stdio.h>
#include <string.h>

static __thread int current_device;
static __thread int last_error;

int runtime_fail(int error) {
    if (error) last_error = error;
    return error;
}

int runtime_device(void) { return current_device; }

int cudaGetLastError(void) {
    int error = last_error;
    last_error = CU_OK;
    return error;
}

int cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorString(int error) {
    switch (error) {
    case CU_OK: return "no error";
    case CU_INVALID_VALUE: return "invalid argument";
    case CU_OUT_OF_MEMORY: return "out of memory";
    case CU_NO_DEVICE: return "no CUDA-capable device is detected";
    case CU_INVALID_DEVICE: return "invalid device ordinal";
    case CU_NOT_READY: return "device not ready";
    case CU_NOT_SUPPORTED: return "operation not supported";
    default: break;
    }
    static __thread char text[64];
    snprintf(text, sizeof text, "error %d of the imaginary GPU", error);
    return text;
}

const char *cudaGetErrorName(int error) {
    switch (error) {
    case CU_OK: return "cudaSuccess";
    case CU_INVALID_VALUE: return "cudaErrorInvalidValue";
    case CU_OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case CU_NO_DEVICE: return "cudaErrorNoDevice";
    case CU_INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case CU_NOT_READY: return "cudaErrorNotReady";
    case CU_NOT_SUPPORTED: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
    }
}

int cudaGetDeviceCount(int *count) {
    const igpu_settings *gpu = igpu_gpu();
    *count = gpu ? gpu->num_devices : 0;
    return gpu ? CU_OK : runtime_fail(CU_NO_DEVICE);
}

int cudaGetDevice(int *device) {
    *device = current_device;
    return CU_OK;
}

int cudaSetDevice(int device) {
    const igpu_settings *gpu = igpu_gpu();
    if (!gpu || device < 0 || device >= gpu->num_devices) return runtime_fail(gpu ? CU_INVALID_DEVICE : CU_NO_DEVICE);
    current_device = device;
    return CU_OK;
}

int cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
    (void)device_flags, (void)flags;
    return cudaSetDevice(device);
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return runtime_fail(cuda_device_attribute(value, attribute, device));
}

static void put(char *properties, size_t offset, size_t size, const void *value) { memcpy(properties + offset, value, size); }

#define OFFSET(field, size, cuda12, cuda13) OFFSET_##field = CUDA_MAJOR >= 13 ? cuda13 : cuda12, SIZE_##field = size,
enum { PROPERTIES(OFFSET) };
#define PUT(field, value) put(out, OFFSET_##field, SIZE_##field, &(__typeof__(value)){value})

static int device_properties(char *out, int device) {
    const igpu_settings *gpu = igpu_gpu();
    if (!gpu || device < 0 || device >= gpu->num_devices) return runtime_fail(gpu ? CU_INVALID_DEVICE : CU_NO_DEVICE);
    unsigned char uuid[16];
    const int block[3] = {1024, 1024, 64}, grid[3] = {2147483647, 65535, 65535};
    cuda_device_uuid(uuid, device);
    memset(out, 0, PROPERTIES_SIZE);
    put(out, OFFSET_name, SIZE_name, gpu->name);
    put(out, OFFSET_uuid, SIZE_uuid, uuid);
    put(out, OFFSET_maxThreadsDim, SIZE_maxThreadsDim, block);
    put(out, OFFSET_maxGridSize, SIZE_maxGridSize, grid);
    PUT(totalGlobalMem, gpu->memory_bytes);
    PUT(sharedMemPerBlock, (size_t)49152);
    PUT(regsPerBlock, 65536);
    PUT(warpSize, 32);
    PUT(memPitch, (size_t)2147483647);
    PUT(maxThreadsPerBlock, 1024);
    PUT(totalConstMem, (size_t)65536);
    PUT(major, gpu->major);
    PUT(minor, gpu->minor);
    PUT(textureAlignment, (size_t)512);
    PUT(texturePitchAlignment, (size_t)32);
    PUT(multiProcessorCount, gpu->num_multiprocessors);
    PUT(canMapHostMemory, 1);
    PUT(surfaceAlignment, (size_t)512);
    PUT(concurrentKernels, 1);
    PUT(pciBusID, device + 1);
    PUT(asyncEngineCount, 3);
    PUT(unifiedAddressing, 1);
    PUT(memoryBusWidth, CUDA_BUS_BITS);
    PUT(l2CacheSize, (int)gpu->l2_bytes);
    PUT(maxThreadsPerMultiProcessor, gpu->max_threads_per_multiprocessor);
    PUT(streamPrioritiesSupported, 1);
    PUT(sharedMemPerMultiprocessor, gpu->shared_bytes_per_multiprocessor);
    PUT(regsPerMultiprocessor, 65536);
    PUT(managedMemory, 1);
    PUT(concurrentManagedAccess, 1);
    PUT(cooperativeLaunch, 1);
    PUT(sharedMemPerBlockOptin, gpu->shared_bytes_per_block_optin);
    PUT(maxBlocksPerMultiProcessor, gpu->max_blocks_per_multiprocessor);
    PUT(reservedSharedMemPerBlock, (size_t)(gpu->major >= 8 ? 1024 : 0));
    PUT(memoryPoolsSupported, 1);
    PUT(clusterLaunch, gpu->major >= 9);
    return CU_OK;
}

#if CUDA_MAJOR >= 13
int cudaGetDeviceProperties(void *properties, int device) { return device_properties(properties, device); }
#else
int cudaGetDeviceProperties_v2(void *properties, int device) { return device_properties(properties, device); }
#endif

int cudaDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CU_OK;
}

int cudaRuntimeGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CU_OK;
}

int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
    return CU_OK;
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer;
    return CU_OK;
}

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CU_OK;
}

int cudaDeviceGetLimit(size_t *value, int limit) {
    (void)limit;
    *value = 1024;
    return CU_OK;
}
