/* libnvidia-ml: what nvidia-smi and monitoring tools read, from the same books. A handle is the device's number + 1.
 * Numbers and layouts: nvml.h of nvidia-nvml-dev-cu12 12.9.79. */
#include "cuda_abi.h"
#include "device.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NVML_OK = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, NVML_INSUFFICIENT_SIZE = 7, NVML_DRIVER_NOT_LOADED = 9 };

typedef uintptr_t handle;

static int index_of(handle device) { return (int)device - 1; }

int nvmlInit_v2(void) { return igpu_gpu() ? NVML_OK : NVML_DRIVER_NOT_LOADED; }
int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned flags) { return (void)flags, nvmlInit_v2(); }
int nvmlShutdown(void) { return NVML_OK; }

const char *nvmlErrorString(int error) {
    switch (error) {
    case NVML_OK: return "The operation was successful";
    case NVML_INVALID_ARGUMENT: return "A supplied argument is invalid";
    case NVML_NOT_FOUND: return "A query to find an object was unsuccessful";
    case NVML_DRIVER_NOT_LOADED: return "MEMSIM_GPU does not describe a GPU";
    default: return "The imaginary GPU does not know this";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "%d.00 (imaginary)", CUDA_MAJOR >= 13 ? 580 : 560);
    return NVML_OK;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    snprintf(text, size, "%d", CUDA_MAJOR);
    return NVML_OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = CUDA_VERSION;
    return NVML_OK;
}

int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = igpu_gpu() ? (unsigned)igpu_gpu()->num_devices : 0;
    return NVML_OK;
}

int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device) {
    *device = (handle)index + 1;
    return igpu_gpu() && (int)index < igpu_gpu()->num_devices ? NVML_OK : NVML_INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByIndex(unsigned index, handle *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

static void bus_id(char *text, size_t size, int index) { snprintf(text, size, "00000000:%02X:00.0", index + 1); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, handle *device) {
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2 || bus == 0) return NVML_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device) ? NVML_NOT_FOUND : NVML_OK;
}

int nvmlDeviceGetHandleByPciBusId(const char *text, handle *device) { return nvmlDeviceGetHandleByPciBusId_v2(text, device); }

static void uuid_text(char *text, size_t size, int index) {
    unsigned char id[16];
    cuda_device_uuid(id, index);
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", id[0], id[1], id[2], id[3],
             id[4], id[5], id[6], id[7], id[8], id[9], id[10], id[11], id[12], id[13], id[14], id[15]);
}

int nvmlDeviceGetUUID(handle device, char *text, unsigned size) {
    uuid_text(text, size, index_of(device));
    return NVML_OK;
}

int nvmlDeviceGetHandleByUUID(const char *text, handle *device) {
    char known[64];
    for (int index = 0; igpu_gpu() && index < igpu_gpu()->num_devices; index++) {
        uuid_text(known, sizeof known, index);
        if (strcmp(known, text) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
    }
    return NVML_NOT_FOUND;
}

int nvmlDeviceGetIndex(handle device, unsigned *index) {
    *index = (unsigned)index_of(device);
    return NVML_OK;
}

int nvmlDeviceGetMinorNumber(handle device, unsigned *number) { return nvmlDeviceGetIndex(device, number); }

int nvmlDeviceGetName(handle device, char *text, unsigned size) {
    (void)device;
    snprintf(text, size, "%s", igpu_gpu()->name);
    return NVML_OK;
}

typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char text[32]; } pci_info;

int nvmlDeviceGetPciInfo_v3(handle device, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)index_of(device) + 1;
    bus_id(info->text, sizeof info->text, index_of(device));
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus & 0xff);
    return NVML_OK;
}

typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_info_v2;

int nvmlDeviceGetMemoryInfo(handle device, memory_info *info) {
    info->total = igpu_gpu()->memory_bytes;
    info->free = igpu_free_bytes(index_of(device));
    info->used = igpu_used_bytes(index_of(device));
    return NVML_OK;
}

int nvmlDeviceGetMemoryInfo_v2(handle device, memory_info_v2 *info) {
    info->total = igpu_gpu()->memory_bytes;
    info->reserved = 0;
    info->free = igpu_free_bytes(index_of(device));
    info->used = igpu_used_bytes(index_of(device));
    return NVML_OK;
}

int nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor) {
    (void)device;
    *major = igpu_gpu()->major;
    *minor = igpu_gpu()->minor;
    return NVML_OK;
}

/* This process is the only one that runs on the device; its memory is what it allocated. */
typedef struct { unsigned pid; unsigned long long used; } process_info;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } process_info_v2;

int nvmlDeviceGetComputeRunningProcesses(handle device, unsigned *count, process_info *list) {
    unsigned room = *count;
    *count = 1;
    if (!room) return NVML_INSUFFICIENT_SIZE;
    *list = (process_info){(unsigned)getpid(), igpu_used_bytes(index_of(device))};
    return NVML_OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(handle device, unsigned *count, process_info_v2 *list) {
    unsigned room = *count;
    *count = 1;
    if (!room) return NVML_INSUFFICIENT_SIZE;
    *list = (process_info_v2){(unsigned)getpid(), igpu_used_bytes(index_of(device)), ~0u, ~0u};
    return NVML_OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, process_info_v2 *list) {
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, list);
}

static int none(unsigned *count) {
    *count = 0;
    return NVML_OK;
}

int nvmlDeviceGetGraphicsRunningProcesses(handle device, unsigned *count) { return (void)device, none(count); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle device, unsigned *count) { return (void)device, none(count); }

int nvmlDeviceGetUtilizationRates(handle device, unsigned rates[2]) {
    (void)device;
    rates[0] = rates[1] = 0;
    return NVML_OK;
}

static int zero(unsigned *value) {
    *value = 0;
    return NVML_OK;
}

int nvmlDeviceGetPowerUsage(handle device, unsigned *milliwatts) { return (void)device, zero(milliwatts); }
int nvmlDeviceGetTemperature(handle device, int sensor, unsigned *celsius) { return (void)device, (void)sensor, zero(celsius); }
int nvmlDeviceGetClockInfo(handle device, int type, unsigned *mhz) { return (void)device, (void)type, zero(mhz); }

int nvmlDeviceGetP2PStatus(handle one, handle two, int index, int *status) {
    (void)one, (void)two, (void)index;
    *status = 0;
    return NVML_OK;
}

/* nvmlGpuFabricInfoV_t: no NVLink fabric (state 0 is NVML_GPU_FABRIC_STATE_NOT_SUPPORTED). */
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } fabric_info;

int nvmlDeviceGetGpuFabricInfoV(handle device, fabric_info *info) {
    (void)device;
    memset(info->cluster, 0, sizeof info->cluster);
    info->status = NVML_NOT_SUPPORTED;
    info->clique = info->state = 0;
    return NVML_OK;
}
