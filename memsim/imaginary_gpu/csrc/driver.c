/* libcuda: devices, contexts, modules and launches. A module holds nothing, a launch does nothing. */
#define _GNU_SOURCE
#include "cuda_abi.h"
#include "device.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int context_of[IGPU_MAX_DEVICES]; /* the address of an element is that device's context */
static __thread void *current_context;

int cuInit(unsigned flags) {
    (void)flags;
    return igpu_gpu() ? CU_OK : CU_NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return CU_OK;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == CU_OUT_OF_MEMORY ? "out of memory" : error ? "error of the imaginary GPU" : "no error";
    return CU_OK;
}

int cuGetErrorName(int error, const char **text) {
    *text = error == CU_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
    return CU_OK;
}

/* Of a name with versions the caller always means the newest one that the stand-in knows. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    static void *self;
    char versioned[128];
    Dl_info info;
    (void)version, (void)flags;
    if (!self && dladdr((void *)context_of, &info)) self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    *function = self ? dlsym(self, versioned) : NULL;
    if (self && !*function) *function = dlsym(self, name);
    if (status) *status = *function ? 0 : 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    if (!*function) igpu_unmodeled(name);
    return *function ? CU_OK : CU_NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Devices */
int cuDeviceGetCount(int *count) {
    *count = igpu_gpu() ? igpu_gpu()->num_devices : 0;
    return igpu_gpu() ? CU_OK : CU_NO_DEVICE;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return igpu_gpu() && ordinal >= 0 && ordinal < igpu_gpu()->num_devices ? CU_OK : CU_INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    if (!igpu_gpu()) return CU_NO_DEVICE;
    snprintf(name, (size_t)size, "%s", igpu_gpu()->name);
    return CU_OK;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
    cuda_device_uuid(uuid, device);
    return CU_OK;
}

int cuDeviceGetUuid(unsigned char uuid[16], int device) { return cuDeviceGetUuid_v2(uuid, device); }

int cuDeviceTotalMem_v2(size_t *num_bytes, int device) {
    (void)device;
    if (!igpu_gpu()) return CU_NO_DEVICE;
    *num_bytes = igpu_gpu()->memory_bytes;
    return CU_OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) { return cuda_device_attribute(value, attribute, device); }

int cuDeviceComputeCapability(int *major, int *minor, int device) {
    int error = cuda_device_attribute(major, ATTR_CAPABILITY_MAJOR, device);
    return error ? error : cuda_device_attribute(minor, ATTR_CAPABILITY_MINOR, device);
}

int cuDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
    return CU_OK;
}

/* Contexts: one for each device */
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &context_of[device];
    return CU_OK;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    (void)device;
    if (flags) *flags = 0;
    if (active) *active = 1;
    return CU_OK;
}

int cuCtxGetCurrent(void **context) {
    *context = current_context ? current_context : &context_of[0];
    return CU_OK;
}

int cuCtxSetCurrent(void *context) {
    current_context = context;
    return CU_OK;
}

int cuCtxPushCurrent_v2(void *context) { return cuCtxSetCurrent(context); }

int cuCtxPopCurrent_v2(void **context) {
    if (context) cuCtxGetCurrent(context);
    return CU_OK;
}

int cuCtxGetDevice(int *device) {
    void *context;
    cuCtxGetCurrent(&context);
    *device = (int)((int *)context - context_of);
    return CU_OK;
}

int cuCtxGetApiVersion(void *context, unsigned *version) {
    (void)context;
    *version = 3020;
    return CU_OK;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CU_OK;
}

/* Modules, libraries and kernels */
static int something(void **handle) {
    static char nothing[64];
    *handle = nothing;
    return CU_OK;
}

int cuModuleLoad(void **module) { return something(module); }
int cuModuleLoadData(void **module) { return something(module); }
int cuModuleLoadDataEx(void **module) { return something(module); }
int cuModuleLoadFatBinary(void **module) { return something(module); }
int cuModuleGetFunction(void **function) { return something(function); }
int cuLibraryLoadData(void **library) { return something(library); }
int cuLibraryLoadFromFile(void **library) { return something(library); }
int cuLibraryGetKernel(void **kernel) { return something(kernel); }
int cuLibraryGetModule(void **module) { return something(module); }
int cuKernelGetFunction(void **function) { return something(function); }
int cuFuncGetModule(void **module) { return something(module); }

int cuLinkCreate_v2(unsigned num_options, int *options, void **values, void **state) {
    (void)num_options, (void)options, (void)values;
    return something(state);
}

int cuLinkComplete(void *state, void **binary, size_t *size) {
    (void)state;
    *size = 64;
    return something(binary);
}

int cuModuleGetGlobal_v2(void **address, size_t *num_bytes, void *module, const char *name) {
    static void *memory;
    (void)module, (void)name;
    if (!memory && igpu_host_allocate(65536, IGPU_MANAGED, &memory)) return CU_OUT_OF_MEMORY;
    if (address) *address = memory;
    if (num_bytes) *num_bytes = 65536;
    return CU_OK;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)function;
    const igpu_settings *gpu = igpu_gpu();
    int capability = gpu ? gpu->major * 10 + gpu->minor : 0;
    switch (attribute) { /* CUfunction_attribute */
    case 0: *value = 1024; break;                     /* MAX_THREADS_PER_BLOCK */
    case 4: *value = 32; break;                       /* NUM_REGS */
    case 5: case 6: *value = capability; break;       /* PTX_VERSION, BINARY_VERSION */
    case 8: *value = 49152; break;                    /* MAX_DYNAMIC_SHARED_SIZE_BYTES */
    default: *value = 0;
    }
    return CU_OK;
}

int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)device;
    return cuFuncGetAttribute(value, attribute, kernel);
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block_size, size_t shared_bytes) {
    const igpu_settings *gpu = igpu_gpu();
    (void)function, (void)shared_bytes;
    if (!gpu) return CU_NO_DEVICE;
    *blocks = gpu->max_threads_per_multiprocessor / (block_size > 0 ? block_size : 1);
    return CU_OK;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *function, const void *config) {
    (void)function, (void)config;
    *clusters = igpu_gpu() ? igpu_gpu()->num_multiprocessors / 2 : 0;
    return CU_OK;
}

/* Streams and events */
int cuStreamCreate(igpu_stream **stream, unsigned flags) {
    *stream = igpu_stream_create(flags, 0);
    return CU_OK;
}

int cuStreamCreateWithPriority(igpu_stream **stream, unsigned flags, int priority) {
    *stream = igpu_stream_create(flags, priority);
    return CU_OK;
}

int cuStreamDestroy_v2(igpu_stream *stream) {
    igpu_stream_destroy(stream);
    return CU_OK;
}

int cuStreamIsCapturing(igpu_stream *stream, int *status) {
    *status = igpu_capture_id(stream) ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return CU_OK;
}

int cuStreamGetCtx(igpu_stream *stream, void **context) {
    (void)stream;
    return cuCtxGetCurrent(context);
}

int cuEventCreate(igpu_event **event, unsigned flags) {
    (void)flags;
    *event = igpu_event_create();
    return CU_OK;
}

int cuEventDestroy_v2(igpu_event *event) {
    free(event);
    return CU_OK;
}

int cuEventRecord(igpu_event *event, igpu_stream *stream) {
    (void)stream;
    igpu_event_record(event);
    return CU_OK;
}

int cuEventQuery(const igpu_event *event) { return igpu_event_done(event) ? CU_OK : CU_NOT_READY; }

int cuEventSynchronize(const igpu_event *event) {
    igpu_event_wait(event);
    return CU_OK;
}
