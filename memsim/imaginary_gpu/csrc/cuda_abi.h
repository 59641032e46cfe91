/* The numbers and layouts of CUDA's interface that the stand-ins need, in memsim's own words.
 *
 * Source: NVIDIA's public headers of the pip packages nvidia-cuda-runtime-cu12 12.9.79 and nvidia-cuda-runtime 13.0.96
 * (driver_types.h, cuda.h). `layout_check.c` compares every line with those headers wherever they are installed. */
#ifndef MEMSIM_CUDA_ABI_H
#define MEMSIM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_MAJOR
#error "CUDA_MAJOR must be 12 or 13"
#endif

enum { /* cudaError_t and CUresult share these numbers */
    CU_OK = 0, CU_INVALID_VALUE = 1, CU_OUT_OF_MEMORY = 2, CU_NO_DEVICE = 100, CU_INVALID_DEVICE = 101,
    CU_NOT_FOUND = 500, CU_NOT_READY = 600, CU_NOT_SUPPORTED = 801,
};

enum { MEMORY_UNREGISTERED = 0, MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_MANAGED = 3 };
enum { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1 };
enum { HANDLE_FABRIC = 8 };

typedef struct { unsigned x, y, z; } dim3;

typedef struct { /* struct cudaPointerAttributes; CUDA 13 adds 64 reserved bytes */
    int type;
    int device;
    void *device_pointer;
    void *host_pointer;
#if CUDA_MAJOR >= 13
    long reserved[8];
#endif
} pointer_attributes;

typedef struct { /* struct cudaFuncAttributes */
    size_t shared_bytes, const_bytes, local_bytes;
    int max_threads_per_block, num_registers, ptx_version, binary_version, cache_mode;
    int max_dynamic_shared_bytes, preferred_shared_carveout, rest[23];
} function_attributes;

typedef struct { int type, id; } memory_location; /* CUmemLocation */

typedef struct { /* CUmemAllocationProp */
    int type, handle_types;
    memory_location location;
    void *win32;
    unsigned char flags[8];
} allocation_properties;

/* struct cudaDeviceProp: PROPERTY(name in the header, bytes, offset in CUDA 12, offset in CUDA 13) */
#define PROPERTIES_SIZE (CUDA_MAJOR >= 13 ? 1008 : 1032)
#define PROPERTIES(PROPERTY)                       \
    PROPERTY(name, 256, 0, 0)                      \
    PROPERTY(uuid, 16, 256, 256)                   \
    PROPERTY(totalGlobalMem, 8, 288, 288)          \
    PROPERTY(sharedMemPerBlock, 8, 296, 296)       \
    PROPERTY(regsPerBlock, 4, 304, 304)            \
    PROPERTY(warpSize, 4, 308, 308)                \
    PROPERTY(memPitch, 8, 312, 312)                \
    PROPERTY(maxThreadsPerBlock, 4, 320, 320)      \
    PROPERTY(maxThreadsDim, 12, 324, 324)          \
    PROPERTY(maxGridSize, 12, 336, 336)            \
    PROPERTY(totalConstMem, 8, 352, 352)           \
    PROPERTY(major, 4, 360, 360)                   \
    PROPERTY(minor, 4, 364, 364)                   \
    PROPERTY(textureAlignment, 8, 368, 368)        \
    PROPERTY(texturePitchAlignment, 8, 376, 376)   \
    PROPERTY(multiProcessorCount, 4, 388, 384)     \
    PROPERTY(canMapHostMemory, 4, 400, 392)        \
    PROPERTY(surfaceAlignment, 8, 568, 552)        \
    PROPERTY(concurrentKernels, 4, 576, 560)       \
    PROPERTY(pciBusID, 4, 584, 568)                \
    PROPERTY(asyncEngineCount, 4, 600, 584)        \
    PROPERTY(unifiedAddressing, 4, 604, 588)       \
    PROPERTY(memoryBusWidth, 4, 612, 592)          \
    PROPERTY(l2CacheSize, 4, 616, 596)             \
    PROPERTY(maxThreadsPerMultiProcessor, 4, 624, 604) \
    PROPERTY(streamPrioritiesSupported, 4, 628, 608) \
    PROPERTY(sharedMemPerMultiprocessor, 8, 640, 624) \
    PROPERTY(regsPerMultiprocessor, 4, 648, 632)   \
    PROPERTY(managedMemory, 4, 652, 636)           \
    PROPERTY(concurrentManagedAccess, 4, 676, 656) \
    PROPERTY(cooperativeLaunch, 4, 688, 668)       \
    PROPERTY(sharedMemPerBlockOptin, 8, 696, 672)  \
    PROPERTY(maxBlocksPerMultiProcessor, 4, 712, 688) \
    PROPERTY(reservedSharedMemPerBlock, 8, 720, 696) \
    PROPERTY(memoryPoolsSupported, 4, 744, 720)    \
    PROPERTY(clusterLaunch, 4, 772, 748)

/* cudaDeviceAttr and CUdevice_attribute share these numbers. */
enum {
    ATTR_MAX_THREADS_PER_BLOCK = 1, ATTR_MAX_BLOCK_DIM_X = 2, ATTR_MAX_BLOCK_DIM_Y = 3, ATTR_MAX_BLOCK_DIM_Z = 4,
    ATTR_MAX_GRID_DIM_X = 5, ATTR_MAX_GRID_DIM_Y = 6, ATTR_MAX_GRID_DIM_Z = 7, ATTR_MAX_SHARED_PER_BLOCK = 8,
    ATTR_TOTAL_CONSTANT_MEMORY = 9, ATTR_WARP_SIZE = 10, ATTR_MAX_PITCH = 11, ATTR_MAX_REGISTERS_PER_BLOCK = 12,
    ATTR_CLOCK_RATE = 13, ATTR_TEXTURE_ALIGNMENT = 14, ATTR_GPU_OVERLAP = 15, ATTR_MULTIPROCESSOR_COUNT = 16,
    ATTR_CAN_MAP_HOST_MEMORY = 19, ATTR_SURFACE_ALIGNMENT = 30, ATTR_CONCURRENT_KERNELS = 31,
    ATTR_MEMORY_CLOCK_RATE = 36, ATTR_MEMORY_BUS_WIDTH = 37, ATTR_L2_CACHE_SIZE = 38,
    ATTR_MAX_THREADS_PER_MULTIPROCESSOR = 39, ATTR_ASYNC_ENGINE_COUNT = 40, ATTR_UNIFIED_ADDRESSING = 41,
    ATTR_TEXTURE_PITCH_ALIGNMENT = 51, ATTR_CAPABILITY_MAJOR = 75, ATTR_CAPABILITY_MINOR = 76,
    ATTR_STREAM_PRIORITIES = 78, ATTR_MAX_SHARED_PER_MULTIPROCESSOR = 81, ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
    ATTR_MANAGED_MEMORY = 83, ATTR_CONCURRENT_MANAGED_ACCESS = 89, ATTR_COOPERATIVE_LAUNCH = 95,
    ATTR_MAX_SHARED_PER_BLOCK_OPTIN = 97, ATTR_VIRTUAL_MEMORY_MANAGEMENT = 102,
    ATTR_MAX_BLOCKS_PER_MULTIPROCESSOR = 106, ATTR_RESERVED_SHARED_PER_BLOCK = 111, ATTR_MEMORY_POOLS = 115,
    ATTR_CLUSTER_LAUNCH = 120,
};

/* cudaMemPoolAttr and CUmemPool_attribute */
enum { POOL_RESERVED_CURRENT = 5, POOL_RESERVED_HIGH = 6, POOL_USED_CURRENT = 7, POOL_USED_HIGH = 8 };

int cuda_device_attribute(int *value, int attribute, int device);   /* attributes.c; returns an error number */
void cuda_device_uuid(unsigned char uuid[16], int device);
#define CUDA_CLOCK_KHZ 1500000     /* PyTorch and Triton only print clocks and bandwidth; nothing is timed here */
#define CUDA_MEMORY_CLOCK_KHZ 1200000
#define CUDA_BUS_BITS 384

#endif
