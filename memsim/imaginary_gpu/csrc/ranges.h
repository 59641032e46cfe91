/* Ranges of addresses, each list sorted by address. Whoever owns a list holds its lock. */
#ifndef MEMSIM_RANGES_H
#define MEMSIM_RANGES_H

#include "device.h"

#define WINDOW ((size_t)1 << 40)                 /* addresses of one device's cudaMalloc */
#define WINDOWS (WINDOW * IGPU_MAX_DEVICES)
#define ARENA (2 * WINDOWS)                      /* the windows and, above them, reservations */

typedef struct range {
    uintptr_t start;
    size_t num_bytes;
    void *owner; /* of a mapping: the physical memory */
    struct range *next;
} range;

size_t range_round_up(size_t value, size_t unit);
range *range_take(range **list, uintptr_t start, uintptr_t end, size_t num_bytes, size_t alignment);
size_t range_drop(range **list, uintptr_t start);
range *range_containing(range *list, uintptr_t address);

uintptr_t igpu_arena(void); /* device_memory.c: the first address, opened when first asked for; 0: no room */
int igpu_mapping_device(uintptr_t address);  /* virtual_memory.c; -1: nothing is mapped there */
int igpu_mapping_range(uintptr_t address, void **start, size_t *num_bytes);

#endif
