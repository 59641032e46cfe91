#include "ranges.h"
#include <stdlib.h>

size_t range_round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* Take the lowest free `num_bytes` of [start, end); NULL when there is no such place. */
range *range_take(range **list, uintptr_t start, uintptr_t end, size_t num_bytes, size_t alignment) {
    range **at = list;
    for (; *at; at = &(*at)->next) {
        if ((*at)->start >= start + num_bytes) break;
        uintptr_t after = (*at)->start + (*at)->num_bytes;
        if (after > start) start = range_round_up(after, alignment);
    }
    range *taken = start + num_bytes <= end ? malloc(sizeof *taken) : NULL;
    if (!taken) return NULL;
    *taken = (range){.start = start, .num_bytes = num_bytes, .next = *at};
    return *at = taken;
}

size_t range_drop(range **list, uintptr_t start) {
    for (range **at = list; *at; at = &(*at)->next) {
        if ((*at)->start != start) continue;
        range *found = *at;
        size_t num_bytes = found->num_bytes;
        *at = found->next;
        free(found);
        return num_bytes;
    }
    return 0;
}

range *range_containing(range *list, uintptr_t address) {
    for (; list && list->start <= address; list = list->next)
        if (address - list->start < list->num_bytes) return list;
    return NULL;
}
