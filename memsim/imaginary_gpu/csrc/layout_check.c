/* Compiled, never linked, where NVIDIA's own headers are installed: any difference from cuda_abi.h stops the build. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#define dim3 igpu_dim3
#include "cuda_abi.h"

#define SAME(what, ours, theirs) _Static_assert((size_t)(ours) == (size_t)(theirs), what)
#define CHECK_PROPERTY(field, size, cuda12, cuda13)                                                                  \
    SAME(#field, CUDART_VERSION >= 13000 ? cuda13 : cuda12, offsetof(struct cudaDeviceProp, field));                 \
    SAME(#field " size", size, sizeof(((struct cudaDeviceProp *)0)->field));

PROPERTIES(CHECK_PROPERTY)
SAME("CUDA major", CUDA_MAJOR, CUDART_VERSION / 1000);
SAME("cudaDeviceProp", PROPERTIES_SIZE, sizeof(struct cudaDeviceProp));
SAME("cudaPointerAttributes", sizeof(pointer_attributes), sizeof(struct cudaPointerAttributes));
SAME("hostPointer", offsetof(pointer_attributes, host_pointer), offsetof(struct cudaPointerAttributes, hostPointer));
SAME("cudaFuncAttributes", sizeof(function_attributes), sizeof(struct cudaFuncAttributes));
SAME("ptxVersion", offsetof(function_attributes, ptx_version), offsetof(struct cudaFuncAttributes, ptxVersion));
SAME("maxDynamicSharedSizeBytes", offsetof(function_attributes, max_dynamic_shared_bytes),
     offsetof(struct cudaFuncAttributes, maxDynamicSharedSizeBytes));
SAME("CUmemAllocationProp", sizeof(allocation_properties), sizeof(CUmemAllocationProp));
SAME("requestedHandleTypes", offsetof(allocation_properties, handle_types),
     offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME("location", offsetof(allocation_properties, location), offsetof(CUmemAllocationProp, location));
SAME("out of memory", CU_OUT_OF_MEMORY, cudaErrorMemoryAllocation);
SAME("not ready", CU_NOT_READY, cudaErrorNotReady);
SAME("no device", CU_NO_DEVICE, cudaErrorNoDevice);
SAME("not supported", CU_NOT_SUPPORTED, cudaErrorNotSupported);
SAME("fabric", HANDLE_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC);
SAME("multiprocessors", ATTR_MULTIPROCESSOR_COUNT, cudaDevAttrMultiProcessorCount);
SAME("capability", ATTR_CAPABILITY_MAJOR, cudaDevAttrComputeCapabilityMajor);
SAME("shared memory", ATTR_MAX_SHARED_PER_BLOCK_OPTIN, cudaDevAttrMaxSharedMemoryPerBlockOptin);
SAME("cluster launch", ATTR_CLUSTER_LAUNCH, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
SAME("virtual memory", ATTR_VIRTUAL_MEMORY_MANAGEMENT, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME("pool", POOL_USED_HIGH, cudaMemPoolAttrUsedMemHigh);
