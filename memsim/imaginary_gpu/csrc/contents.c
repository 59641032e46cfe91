/* The contents of device memory: all zero, but for what small copies wrote. Kernels do not run, so nothing else writes.
 *
 * A bit for each 4 KiB page of the arena says whether anything was written there. A page without the bit is never
 * touched, reads as zero and takes no memory. PyTorch's allocator tells of each block that it hands out (see
 * c10::reportMemoryUsageToProfiler below), and its contents are then forgotten: a new tensor is zero, never stale. */
#define _GNU_SOURCE
#include "device.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((uintptr_t)4096)
#define BITS 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t base;
static uint64_t *written; /* one bit a page */

int igpu_contents_open(uintptr_t start, size_t num_bytes) {
    size_t size = num_bytes / PAGE / 8;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        fprintf(stderr, "memsim: no room for the imaginary GPU's books\n");
        return 1;
    }
    madvise(map, size, MADV_NOHUGEPAGE);
    madvise(map, size, MADV_DONTDUMP);
    base = start;
    written = map;
    return 0;
}

/* Return the first written page at or after `page`, or `end`. */
static uintptr_t next_written(uintptr_t page, uintptr_t end) {
    while (page < end) {
        uint64_t word = written[page / BITS] >> (page % BITS);
        if (word) {
            page += (uintptr_t)__builtin_ctzll(word);
            return page < end ? page : end;
        }
        page = (page / BITS + 1) * BITS;
    }
    return end;
}

static uintptr_t page_of(uintptr_t address) { return (address - base) / PAGE; }

static void mark(uintptr_t start, size_t num_bytes) {
    for (uintptr_t page = page_of(start); page <= page_of(start + num_bytes - 1); page++)
        written[page / BITS] |= 1ull << (page % BITS);
}

static void erase(uintptr_t start, size_t num_bytes) {
    uintptr_t end = start + num_bytes, last = page_of(end - 1) + 1;
    for (uintptr_t page = next_written(page_of(start), last); page < last; page = next_written(page + 1, last)) {
        uintptr_t from = base + page * PAGE, to = from + PAGE;
        if (from >= start && to <= end) {
            madvise((void *)from, PAGE, MADV_DONTNEED);
            written[page / BITS] &= ~(1ull << (page % BITS));
        } else {
            from = from > start ? from : start;
            memset((void *)from, 0, (to < end ? to : end) - from);
        }
    }
}

/* Make host memory zero. Large private memory gives its pages back instead: that costs nothing. */
static void zero_host(char *to, size_t num_bytes) {
    uintptr_t first = ((uintptr_t)to + PAGE - 1) / PAGE * PAGE, last = ((uintptr_t)to + num_bytes) / PAGE * PAGE;
    unsigned char resident;
    if (num_bytes <= IGPU_COPY_LIMIT || first >= last || igpu_host_find(to) == IGPU_REGISTERED ||
        madvise((void *)first, last - first, MADV_DONTNEED) || mincore((void *)first, PAGE, &resident)) {
        memset(to, 0, num_bytes);
        return;
    }
    memset(to, 0, first - (uintptr_t)to);
    memset((void *)last, 0, (uintptr_t)to + num_bytes - last);
    if (resident & 1) memset((void *)first, 0, last - first); /* pages of a file or shared memory stayed */
}

static void each_written(char *to, const char *from, size_t num_bytes, int to_device) {
    uintptr_t start = (uintptr_t)from, end = start + num_bytes, last = page_of(end - 1) + 1;
    for (uintptr_t page = next_written(page_of(start), last); page < last; page = next_written(page + 1, last)) {
        uintptr_t left = base + page * PAGE, right = left + PAGE;
        left = left > start ? left : start;
        right = right < end ? right : end;
        memmove(to + (left - start), (void *)left, right - left);
        if (to_device) mark((uintptr_t)to + (left - start), right - left);
    }
}

void igpu_copy(void *to, const void *from, size_t num_bytes) {
    if (!num_bytes || to == from) return;
    int to_device = igpu_is_device(to), from_device = igpu_is_device(from);
    pthread_mutex_lock(&lock);
    if (to_device && !from_device && num_bytes <= IGPU_COPY_LIMIT) {
        memcpy(to, from, num_bytes);
        mark((uintptr_t)to, num_bytes);
    } else if (!to_device && !from_device) {
        memmove(to, from, num_bytes);
    } else {
        if (to_device) erase((uintptr_t)to, num_bytes);
        else zero_host(to, num_bytes);
        if (from_device) each_written(to, from, num_bytes, to_device);
    }
    pthread_mutex_unlock(&lock);
}

void igpu_fill(void *to, int value, size_t num_bytes) {
    if (!num_bytes) return;
    if (!igpu_is_device(to)) {
        memset(to, value, num_bytes);
        return;
    }
    pthread_mutex_lock(&lock);
    if ((unsigned char)value && num_bytes <= IGPU_COPY_LIMIT) {
        memset(to, value, num_bytes);
        mark((uintptr_t)to, num_bytes);
    } else {
        erase((uintptr_t)to, num_bytes);
    }
    pthread_mutex_unlock(&lock);
}

void igpu_forget(void *address, size_t num_bytes) {
    if (!num_bytes || !igpu_is_device(address)) return;
    pthread_mutex_lock(&lock);
    erase((uintptr_t)address, num_bytes);
    pthread_mutex_unlock(&lock);
}

/* c10::reportMemoryUsageToProfiler(void *, int64_t, size_t, size_t, c10::Device): PyTorch's caching allocator calls it
 * for each block that it hands out (`size` > 0) and takes back (c10/core/Allocator.h, torch 2.6 to 2.15). This library
 * comes first in the search order, hears it, and passes it on. */
typedef struct { int8_t type, index; } c10_device;
typedef void (*reporter)(void *, int64_t, size_t, size_t, c10_device);

void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *block, int64_t size, size_t allocated, size_t reserved,
                                                           c10_device device) {
    static reporter real;
    if (size > 0) igpu_forget(block, (size_t)size);
    if (!real) {
        union { void *object; reporter function; } found;
        found.object = dlsym(RTLD_NEXT, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
        real = found.function;
    }
    if (real) real(block, size, allocated, reserved, device);
}
