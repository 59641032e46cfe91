/* What a device says of itself when asked for one attribute: the runtime and the driver share the numbers. */
#include "cuda_abi.h"
#include "device.h"
#include <string.h>

static int limit(const igpu_settings *gpu, int attribute) {
    switch (attribute) {
    case ATTR_MULTIPROCESSOR_COUNT: return gpu->num_multiprocessors;
    case ATTR_L2_CACHE_SIZE: return (int)gpu->l2_bytes;
    case ATTR_MAX_THREADS_PER_MULTIPROCESSOR: return gpu->max_threads_per_multiprocessor;
    case ATTR_MAX_BLOCKS_PER_MULTIPROCESSOR: return gpu->max_blocks_per_multiprocessor;
    case ATTR_CAPABILITY_MAJOR: return gpu->major;
    case ATTR_CAPABILITY_MINOR: return gpu->minor;
    case ATTR_MAX_SHARED_PER_MULTIPROCESSOR: return (int)gpu->shared_bytes_per_multiprocessor;
    case ATTR_MAX_SHARED_PER_BLOCK_OPTIN: return (int)gpu->shared_bytes_per_block_optin;
    case ATTR_RESERVED_SHARED_PER_BLOCK: return gpu->major >= 8 ? 1024 : 0;
    case ATTR_CLUSTER_LAUNCH: return gpu->major >= 9;
    default: return 0;
    }
}

int cuda_device_attribute(int *value, int attribute, int device) {
    const igpu_settings *gpu = igpu_gpu();
    if (!gpu) return CU_NO_DEVICE;
    if (device < 0 || device >= gpu->num_devices) return CU_INVALID_DEVICE;
    switch (attribute) {
    case ATTR_MAX_THREADS_PER_BLOCK: case ATTR_MAX_BLOCK_DIM_X: case ATTR_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case ATTR_MAX_BLOCK_DIM_Z: *value = 64; break;
    case ATTR_MAX_GRID_DIM_X: case ATTR_MAX_PITCH: *value = 2147483647; break;
    case ATTR_MAX_GRID_DIM_Y: case ATTR_MAX_GRID_DIM_Z: *value = 65535; break;
    case ATTR_MAX_SHARED_PER_BLOCK: *value = 49152; break;
    case ATTR_TOTAL_CONSTANT_MEMORY: case ATTR_MAX_REGISTERS_PER_BLOCK: case ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR:
        *value = 65536; break;
    case ATTR_WARP_SIZE: case ATTR_TEXTURE_PITCH_ALIGNMENT: *value = 32; break;
    case ATTR_CLOCK_RATE: *value = CUDA_CLOCK_KHZ; break;
    case ATTR_MEMORY_CLOCK_RATE: *value = CUDA_MEMORY_CLOCK_KHZ; break;
    case ATTR_MEMORY_BUS_WIDTH: *value = CUDA_BUS_BITS; break;
    case ATTR_TEXTURE_ALIGNMENT: case ATTR_SURFACE_ALIGNMENT: *value = 512; break;
    case ATTR_ASYNC_ENGINE_COUNT: *value = 3; break;
    case ATTR_GPU_OVERLAP: case ATTR_CAN_MAP_HOST_MEMORY: case ATTR_CONCURRENT_KERNELS: case ATTR_UNIFIED_ADDRESSING:
    case ATTR_STREAM_PRIORITIES: case ATTR_MANAGED_MEMORY: case ATTR_CONCURRENT_MANAGED_ACCESS:
    case ATTR_COOPERATIVE_LAUNCH: case ATTR_VIRTUAL_MEMORY_MANAGEMENT: case ATTR_MEMORY_POOLS: *value = 1; break;
    default: *value = limit(gpu, attribute); /* 0: multicast, fabric, GPUDirect, ... are not there */
    }
    return CU_OK;
}

void cuda_device_uuid(unsigned char uuid[16], int device) {
    memcpy(uuid, "memsim-imaginary", 16);
    uuid[15] = (unsigned char)device;
}
