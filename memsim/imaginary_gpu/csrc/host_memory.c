/* Pinned, registered and managed host memory: ordinary memory whose ranges are known. */
#define _GNU_SOURCE
#include "device.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct host_range {
    uintptr_t start;
    size_t num_bytes;
    enum igpu_host_kind kind;
    struct host_range *next;
} host_range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static host_range *ranges;

static int add(void *address, size_t num_bytes, enum igpu_host_kind kind) {
    host_range *added = malloc(sizeof *added);
    if (!added) return 1;
    pthread_mutex_lock(&lock);
    *added = (host_range){(uintptr_t)address, num_bytes, kind, ranges};
    ranges = added;
    pthread_mutex_unlock(&lock);
    return 0;
}

static size_t remove_range(void *address) {
    size_t num_bytes = 0;
    pthread_mutex_lock(&lock);
    for (host_range **at = &ranges; *at; at = &(*at)->next) {
        if ((*at)->start != (uintptr_t)address) continue;
        host_range *found = *at;
        num_bytes = found->num_bytes;
        *at = found->next;
        free(found);
        break;
    }
    pthread_mutex_unlock(&lock);
    return num_bytes;
}

int igpu_host_allocate(size_t num_bytes, enum igpu_host_kind kind, void **address) {
    size_t size = num_bytes ? num_bytes : 1;
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return 1;
    if (add(start, size, kind)) {
        munmap(start, size);
        return 1;
    }
    *address = start;
    return 0;
}

int igpu_host_free(void *address) {
    size_t num_bytes = remove_range(address);
    if (num_bytes) munmap(address, num_bytes);
    return num_bytes == 0;
}

int igpu_host_register(void *address, size_t num_bytes) { return add(address, num_bytes, IGPU_REGISTERED); }

int igpu_host_unregister(void *address) { return remove_range(address) == 0; }

enum igpu_host_kind igpu_host_find(const void *address) {
    enum igpu_host_kind kind = IGPU_NOT_HOST;
    pthread_mutex_lock(&lock);
    for (host_range *at = ranges; at && kind == IGPU_NOT_HOST; at = at->next)
        if ((uintptr_t)address - at->start < at->num_bytes) kind = at->kind;
    pthread_mutex_unlock(&lock);
    return kind;
}
