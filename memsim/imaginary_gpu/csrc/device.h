/* The imaginary device: what the stand-in libraries share. Everything here lives in one library, so that the runtime,
 * the driver and NVML of a process speak of the same memory. Functions return 0 for success unless said. */
#ifndef MEMSIM_DEVICE_H
#define MEMSIM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define IGPU_MAX_DEVICES 16
#define IGPU_GRANULE ((size_t)2 << 20)      /* the driver hands out physical memory in units of 2 MiB */
#define IGPU_COPY_LIMIT ((size_t)1 << 20)   /* host-to-device copies above this leave zeros behind */

typedef struct {
    char name[256];
    size_t memory_bytes;
    size_t l2_bytes;
    int major, minor;
    int num_multiprocessors;
    int num_devices;
    int max_threads_per_multiprocessor;
    int max_blocks_per_multiprocessor;
    size_t shared_bytes_per_multiprocessor;
    size_t shared_bytes_per_block_optin;
} igpu_settings;

/* settings.c */
const igpu_settings *igpu_gpu(void);        /* NULL (and one line on stderr) when MEMSIM_GPU does not describe a GPU */
void igpu_unmodeled(const char *function);  /* notes, with MEMSIM_GPU_LOG=1, a call that only returns success */

/* device_memory.c: physical capacity and addresses */
int igpu_allocate(int device, size_t num_bytes, void **address);   /* 1: out of memory */
int igpu_free(void *address);                                      /* 1: not an allocation */
size_t igpu_free_bytes(int device);
size_t igpu_used_bytes(int device);
size_t igpu_peak_bytes(int device);
int igpu_is_device(const void *address);
int igpu_device_of(const void *address);
int igpu_range(const void *address, void **start, size_t *num_bytes);
int igpu_charge(int device, size_t num_bytes);                     /* physical memory without an address; 1: none left */
void igpu_uncharge(int device, size_t num_bytes);

/* virtual_memory.c */
typedef struct igpu_physical igpu_physical;
int igpu_reserve(size_t num_bytes, size_t alignment, void **address);
int igpu_unreserve(void *address);
igpu_physical *igpu_physical_create(int device, size_t num_bytes); /* NULL: out of memory */
void igpu_physical_retain(igpu_physical *memory);
void igpu_physical_release(igpu_physical *memory);
int igpu_physical_device(const igpu_physical *memory);
int igpu_map(void *address, size_t num_bytes, igpu_physical *memory);
int igpu_unmap(void *address, size_t num_bytes);
igpu_physical *igpu_mapped_memory(const void *address);

/* contents.c: which bytes of device memory are known; all others read as zero */
void igpu_copy(void *to, const void *from, size_t num_bytes);
void igpu_fill(void *to, int value, size_t num_bytes);
void igpu_forget(void *address, size_t num_bytes);
int igpu_contents_open(uintptr_t start, size_t num_bytes);

/* host_memory.c: pinned, registered and managed host memory */
enum igpu_host_kind { IGPU_NOT_HOST = 0, IGPU_PINNED, IGPU_REGISTERED, IGPU_MANAGED };
int igpu_host_allocate(size_t num_bytes, enum igpu_host_kind kind, void **address);
int igpu_host_free(void *address);
int igpu_host_register(void *address, size_t num_bytes);
int igpu_host_unregister(void *address);
enum igpu_host_kind igpu_host_find(const void *address);

/* streams.c: everything is done as soon as it is asked for, unless events are held */
typedef struct igpu_stream igpu_stream;
igpu_stream *igpu_stream_create(unsigned flags, int priority);
void igpu_stream_destroy(igpu_stream *stream);
unsigned igpu_stream_flags(const igpu_stream *stream);
int igpu_stream_priority(const igpu_stream *stream);
unsigned long long igpu_stream_id(const igpu_stream *stream);
unsigned long long igpu_capture_id(const igpu_stream *stream);     /* 0: not capturing */
void igpu_capture_begin(igpu_stream *stream);
void *igpu_capture_graph(const igpu_stream *stream);
void *igpu_capture_end(igpu_stream *stream);
typedef struct igpu_event igpu_event;
igpu_event *igpu_event_create(void);
void igpu_event_record(igpu_event *event);
int igpu_event_done(const igpu_event *event);
void igpu_event_wait(const igpu_event *event);
void igpu_events_finish(void);
void igpu_events_hold(int hold);   /* 1: events recorded from now on are done when waited for, or when no longer held */
double igpu_event_milliseconds(const igpu_event *event);

#endif
