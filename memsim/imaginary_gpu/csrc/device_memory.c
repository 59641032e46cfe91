/* Addresses and capacity of the imaginary device. No byte is ever backed by memory unless something is copied there.
 *
 * One range of addresses (the arena) is set aside when the device is first used: a window of 1 TiB for each device, in
 * which cudaMalloc takes the lowest free address (a real GPU's pages move freely, so capacity never fragments), and above
 * them the room for reservations of virtual memory. */
#define _GNU_SOURCE
#include "ranges.h"
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t arena;
static range *allocations[IGPU_MAX_DEVICES];
static size_t used[IGPU_MAX_DEVICES], peak[IGPU_MAX_DEVICES];

static void open_arena(void) {
    void *hint = (void *)((uintptr_t)1 << 45);
    void *start = mmap(hint, ARENA + IGPU_GRANULE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        fprintf(stderr, "memsim: no room for the imaginary GPU's addresses: 'ulimit -v' must be unlimited and "
                        "vm.overcommit_memory 0 or 1\n");
        return;
    }
    uintptr_t aligned = range_round_up((uintptr_t)start, IGPU_GRANULE);
    madvise((void *)aligned, ARENA, MADV_NOHUGEPAGE); /* a huge page would make a 4 KiB copy cost 2 MiB */
    madvise((void *)aligned, ARENA, MADV_DONTDUMP);
    if (!igpu_contents_open(aligned, ARENA)) arena = aligned;
}

uintptr_t igpu_arena(void) {
    pthread_once(&once, open_arena);
    return arena;
}

static int charge(int device, size_t num_bytes) {
    const igpu_settings *gpu = igpu_gpu();
    if (!gpu || device < 0 || device >= gpu->num_devices || num_bytes > gpu->memory_bytes - used[device]) return 1;
    used[device] += num_bytes;
    if (used[device] > peak[device]) peak[device] = used[device];
    return 0;
}

int igpu_charge(int device, size_t num_bytes) {
    pthread_mutex_lock(&lock);
    int failed = charge(device, num_bytes);
    pthread_mutex_unlock(&lock);
    return failed;
}

void igpu_uncharge(int device, size_t num_bytes) {
    pthread_mutex_lock(&lock);
    used[device] -= num_bytes;
    pthread_mutex_unlock(&lock);
}

int igpu_allocate(int device, size_t num_bytes, void **address) {
    uintptr_t window = igpu_arena() + WINDOW * (size_t)device;
    if (!igpu_arena() || num_bytes > WINDOW) return 1;
    size_t charged = range_round_up(num_bytes, IGPU_GRANULE);
    pthread_mutex_lock(&lock);
    range *taken = NULL;
    if (!charge(device, charged)) {
        taken = range_take(&allocations[device], window, window + WINDOW, charged, IGPU_GRANULE);
        if (taken) *address = (void *)taken->start;
        else used[device] -= charged;
    }
    pthread_mutex_unlock(&lock);
    return !taken;
}

int igpu_free(void *address) {
    uintptr_t offset = (uintptr_t)address - arena;
    if (!arena || offset >= WINDOWS) return 1;
    size_t device = offset / WINDOW;
    pthread_mutex_lock(&lock);
    size_t num_bytes = range_drop(&allocations[device], (uintptr_t)address);
    used[device] -= num_bytes;
    pthread_mutex_unlock(&lock);
    igpu_forget(address, num_bytes);
    return num_bytes == 0;
}

size_t igpu_free_bytes(int device) { return igpu_gpu() ? igpu_gpu()->memory_bytes - used[device] : 0; }
size_t igpu_used_bytes(int device) { return used[device]; }
size_t igpu_peak_bytes(int device) { return peak[device]; }

int igpu_is_device(const void *address) { return arena && (uintptr_t)address - arena < ARENA; }

int igpu_device_of(const void *address) {
    uintptr_t offset = (uintptr_t)address - arena;
    return offset < WINDOWS ? (int)(offset / WINDOW) : igpu_mapping_device((uintptr_t)address);
}

int igpu_range(const void *address, void **start, size_t *num_bytes) {
    if (!igpu_is_device(address)) return 1;
    uintptr_t offset = (uintptr_t)address - arena;
    if (offset >= WINDOWS) return igpu_mapping_range((uintptr_t)address, start, num_bytes);
    pthread_mutex_lock(&lock);
    range *found = range_containing(allocations[offset / WINDOW], (uintptr_t)address);
    if (found && start) *start = (void *)found->start;
    if (found && num_bytes) *num_bytes = found->num_bytes;
    pthread_mutex_unlock(&lock);
    return !found;
}
