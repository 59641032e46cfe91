/* libcuda: memory. The same device, the same books as the runtime's. */
#include "cuda_abi.h"
#include "device.h"
#include <string.h>

int cuCtxGetDevice(int *device);

static int current_device(void) {
    int device;
    cuCtxGetDevice(&device);
    return device;
}

int cuMemAlloc_v2(void **address, size_t num_bytes) {
    if (!num_bytes) return CU_INVALID_VALUE;
    return igpu_allocate(current_device(), num_bytes, address) ? CU_OUT_OF_MEMORY : CU_OK;
}

int cuMemFree_v2(void *address) {
    if (!address) return CU_OK;
    int failed = igpu_is_device(address) ? igpu_free(address) : igpu_host_free(address);
    return failed ? CU_INVALID_VALUE : CU_OK;
}

int cuMemAllocManaged(void **address, size_t num_bytes, unsigned flags) {
    (void)flags;
    return igpu_host_allocate(num_bytes, IGPU_MANAGED, address) ? CU_OUT_OF_MEMORY : CU_OK;
}

int cuMemHostAlloc(void **address, size_t num_bytes, unsigned flags) {
    (void)flags;
    return igpu_host_allocate(num_bytes, IGPU_PINNED, address) ? CU_OUT_OF_MEMORY : CU_OK;
}

int cuMemFreeHost(void *address) { return igpu_host_free(address) ? CU_INVALID_VALUE : CU_OK; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    if (!igpu_gpu()) return CU_NO_DEVICE;
    *free_bytes = igpu_free_bytes(current_device());
    *total_bytes = igpu_gpu()->memory_bytes;
    return CU_OK;
}

int cuMemGetAddressRange_v2(void **start, size_t *num_bytes, void *address) {
    return igpu_range(address, start, num_bytes) ? CU_INVALID_VALUE : CU_OK;
}

/* Copies and fills */
#define COPY(name)                                                     \
    int name(void *to, const void *from, size_t num_bytes) {           \
        igpu_copy(to, from, num_bytes);                                \
        return CU_OK;                                                  \
    }
COPY(cuMemcpy)
COPY(cuMemcpyAsync)
COPY(cuMemcpyHtoD_v2)
COPY(cuMemcpyHtoDAsync_v2)
COPY(cuMemcpyDtoH_v2)
COPY(cuMemcpyDtoHAsync_v2)
COPY(cuMemcpyDtoD_v2)
COPY(cuMemcpyDtoDAsync_v2)

int cuMemsetD8_v2(void *to, unsigned char value, size_t num) {
    igpu_fill(to, value, num);
    return CU_OK;
}

int cuMemsetD8Async(void *to, unsigned char value, size_t num, void *stream) {
    (void)stream;
    return cuMemsetD8_v2(to, value, num);
}

int cuMemsetD32_v2(unsigned *to, unsigned value, size_t num) {
    int is_small = num * sizeof value <= IGPU_COPY_LIMIT;
    igpu_fill(to, 0, num * sizeof value);
    for (size_t i = 0; value && is_small && i < num; i++) igpu_copy(to + i, &value, sizeof value);
    return CU_OK;
}

int cuMemsetD32Async(unsigned *to, unsigned value, size_t num, void *stream) {
    (void)stream;
    return cuMemsetD32_v2(to, value, num);
}

/* What a pointer points at; numbers of CUpointer_attribute */
int cuPointerGetAttribute(void *value, int attribute, void *address) {
    int is_device = igpu_is_device(address), device = is_device ? igpu_device_of(address) : -1;
    enum igpu_host_kind kind = is_device ? IGPU_NOT_HOST : igpu_host_find(address);
    if (is_device ? device < 0 : kind == IGPU_NOT_HOST) return CU_INVALID_VALUE;
    switch (attribute) {
    case 1: *(void **)value = NULL; break;                                        /* CONTEXT */
    case 2: *(unsigned *)value = is_device || kind == IGPU_MANAGED ? 2 : 1; break; /* MEMORY_TYPE: device or host */
    case 3: *(void **)value = address; break;                                     /* DEVICE_POINTER */
    case 4: *(void **)value = address; return is_device ? CU_INVALID_VALUE : CU_OK; /* HOST_POINTER */
    case 7: *(uint64_t *)value = 1; break;                                        /* BUFFER_ID */
    case 8: *(int *)value = kind == IGPU_MANAGED; break;                          /* IS_MANAGED */
    case 9: *(int *)value = is_device ? device : 0; break;                        /* DEVICE_ORDINAL */
    case 11: return igpu_range(address, value, NULL) ? CU_INVALID_VALUE : CU_OK;  /* RANGE_START_ADDR */
    case 12: return igpu_range(address, NULL, value) ? CU_INVALID_VALUE : CU_OK;  /* RANGE_SIZE */
    case 13: *(int *)value = 1; break;                                            /* MAPPED */
    default: return CU_NOT_SUPPORTED;
    }
    return CU_OK;
}

int cuPointerGetAttributes(unsigned num, int *attributes, void **values, void *address) {
    for (unsigned i = 0; i < num; i++) cuPointerGetAttribute(values[i], attributes[i], address);
    return CU_OK;
}

/* Virtual memory management */
int cuMemAddressReserve(void **address, size_t num_bytes, size_t alignment, void *hint, uint64_t flags) {
    (void)hint, (void)flags;
    return igpu_reserve(num_bytes, alignment, address) ? CU_OUT_OF_MEMORY : CU_OK;
}

int cuMemAddressFree(void *address, size_t num_bytes) {
    (void)num_bytes;
    return igpu_unreserve(address) ? CU_INVALID_VALUE : CU_OK;
}

int cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option) {
    (void)properties, (void)option;
    *granularity = IGPU_GRANULE;
    return CU_OK;
}

int cuMemCreate(igpu_physical **memory, size_t num_bytes, const allocation_properties *properties, uint64_t flags) {
    (void)flags;
    if (properties->handle_types & HANDLE_FABRIC) return CU_NOT_SUPPORTED;
    if (!num_bytes || num_bytes % IGPU_GRANULE) return CU_INVALID_VALUE;
    *memory = igpu_physical_create(properties->location.id, num_bytes);
    return *memory ? CU_OK : CU_OUT_OF_MEMORY;
}

int cuMemRelease(igpu_physical *memory) {
    igpu_physical_release(memory);
    return CU_OK;
}

int cuMemRetainAllocationHandle(igpu_physical **memory, void *address) {
    *memory = igpu_mapped_memory(address);
    if (!*memory) return CU_INVALID_VALUE;
    igpu_physical_retain(*memory);
    return CU_OK;
}

int cuMemMap(void *address, size_t num_bytes, size_t offset, igpu_physical *memory, uint64_t flags) {
    (void)offset, (void)flags;
    return igpu_map(address, num_bytes, memory) ? CU_INVALID_VALUE : CU_OK;
}

int cuMemUnmap(void *address, size_t num_bytes) { return igpu_unmap(address, num_bytes) ? CU_INVALID_VALUE : CU_OK; }

int cuMemGetAllocationPropertiesFromHandle(allocation_properties *properties, igpu_physical *memory) {
    memset(properties, 0, sizeof *properties);
    properties->type = 1;          /* CU_MEM_ALLOCATION_TYPE_PINNED */
    properties->location.type = 1; /* CU_MEM_LOCATION_TYPE_DEVICE */
    properties->location.id = igpu_physical_device(memory);
    return CU_OK;
}

int cuMemExportToShareableHandle(void *handle, igpu_physical *memory, int type, uint64_t flags) {
    (void)handle, (void)memory, (void)type, (void)flags;
    return CU_NOT_SUPPORTED;
}
