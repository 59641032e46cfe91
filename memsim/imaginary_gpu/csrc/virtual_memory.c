/* Virtual memory management, as expandable segments use it: reserve addresses, create physical memory, map it there.
 * Physical memory counts against the device's capacity from its creation until it is released and mapped nowhere. */
#include "ranges.h"
#include <pthread.h>
#include <stdlib.h>

struct igpu_physical {
    size_t num_bytes;
    int device;
    int holders; /* the handle and each mapping */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range *reservations, *mappings;

int igpu_reserve(size_t num_bytes, size_t alignment, void **address) {
    uintptr_t arena = igpu_arena();
    size_t unit = alignment > IGPU_GRANULE ? alignment : IGPU_GRANULE;
    if (!arena || !num_bytes || num_bytes > WINDOWS) return 1;
    pthread_mutex_lock(&lock);
    range *taken = range_take(&reservations, range_round_up(arena + WINDOWS, unit), arena + ARENA,
                              range_round_up(num_bytes, IGPU_GRANULE), unit);
    if (taken) *address = (void *)taken->start;
    pthread_mutex_unlock(&lock);
    return !taken;
}

int igpu_unreserve(void *address) {
    pthread_mutex_lock(&lock);
    size_t dropped = range_drop(&reservations, (uintptr_t)address);
    pthread_mutex_unlock(&lock);
    return dropped == 0;
}

igpu_physical *igpu_physical_create(int device, size_t num_bytes) {
    igpu_physical *memory = malloc(sizeof *memory);
    if (memory && igpu_charge(device, num_bytes)) {
        free(memory);
        return NULL;
    }
    if (memory) *memory = (igpu_physical){num_bytes, device, 1};
    return memory;
}

static void release(igpu_physical *memory) {
    if (--memory->holders) return;
    igpu_uncharge(memory->device, memory->num_bytes);
    free(memory);
}

void igpu_physical_release(igpu_physical *memory) {
    pthread_mutex_lock(&lock);
    release(memory);
    pthread_mutex_unlock(&lock);
}

void igpu_physical_retain(igpu_physical *memory) {
    pthread_mutex_lock(&lock);
    memory->holders++;
    pthread_mutex_unlock(&lock);
}

int igpu_physical_device(const igpu_physical *memory) { return memory->device; }

int igpu_map(void *address, size_t num_bytes, igpu_physical *memory) {
    pthread_mutex_lock(&lock);
    uintptr_t start = (uintptr_t)address;
    int known = range_containing(reservations, start) != NULL;
    range *taken = known ? range_take(&mappings, start, start + num_bytes, num_bytes, 1) : NULL;
    if (taken) {
        taken->owner = memory;
        memory->holders++;
    }
    pthread_mutex_unlock(&lock);
    return !taken; /* not reserved, or something is mapped there already */
}

int igpu_unmap(void *address, size_t num_bytes) {
    uintptr_t start = (uintptr_t)address;
    int unmapped = 0;
    pthread_mutex_lock(&lock);
    for (range **at = &mappings; *at && (*at)->start < start + num_bytes;) {
        range *found = *at;
        if (found->start < start) {
            at = &found->next;
            continue;
        }
        *at = found->next;
        release(found->owner);
        free(found);
        unmapped++;
    }
    pthread_mutex_unlock(&lock);
    igpu_forget(address, num_bytes);
    return unmapped == 0;
}

igpu_physical *igpu_mapped_memory(const void *address) {
    pthread_mutex_lock(&lock);
    range *found = range_containing(mappings, (uintptr_t)address);
    igpu_physical *memory = found ? found->owner : NULL;
    pthread_mutex_unlock(&lock);
    return memory;
}

int igpu_mapping_device(uintptr_t address) {
    igpu_physical *memory = igpu_mapped_memory((void *)address);
    return memory ? memory->device : -1;
}

int igpu_mapping_range(uintptr_t address, void **start, size_t *num_bytes) {
    pthread_mutex_lock(&lock);
    range *found = range_containing(reservations, address);
    if (found && start) *start = (void *)found->start;
    if (found && num_bytes) *num_bytes = found->num_bytes;
    pthread_mutex_unlock(&lock);
    return !found;
}
