/* Which compiled form of a kernel the driver would load: CUB asks, and refuses architectures it was not compiled for. An
 * RTX 4090 (8.9) runs what was compiled for 8.6 where there is nothing nearer.
 *
 * A fat binary is a row of entries, one an architecture, each machine code or PTX. Layout: fatbinary_section.h of CUDA
 * (the wrapper), and github.com/n-eiling/cuda-fatbin-decompression, fatbin-decompress.h (the entries). */
#include "architectures.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint32_t magic, version; const void *data; } wrapper;
typedef struct { uint32_t magic; uint16_t version, header_size; uint64_t size; } container;
typedef struct {
    uint16_t kind, version;
    uint32_t header_size;
    uint64_t size;
    uint32_t compressed_size, unknown;
    uint16_t minor, major;
    uint32_t architecture;
} entry;
enum { WRAPPER_MAGIC = 0x466243b1, KIND_PTX = 1, KIND_MACHINE_CODE = 2 };
#define CONTAINER_MAGIC 0xba55ed50u

/* Every kernel and its fat binary: open addressing, a power of two of places. */
typedef struct { const void *function; const wrapper *binary; } place;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static place *places;
static size_t num_places, num_used;

static place *place_of(place *table, size_t size, const void *function) {
    size_t at = ((uintptr_t)function * 0x9e3779b97f4a7c15ull) >> 20 & (size - 1);
    while (table[at].function && table[at].function != function) at = (at + 1) & (size - 1);
    return &table[at];
}

static int grow(void) {
    size_t size = num_places ? num_places * 2 : 4096;
    place *table = calloc(size, sizeof *table);
    if (!table) return 1;
    for (size_t i = 0; i < num_places; i++)
        if (places[i].function) *place_of(table, size, places[i].function) = places[i];
    free(places);
    places = table;
    num_places = size;
    return 0;
}

void architectures_register(const void *function, const void *binary) {
    pthread_mutex_lock(&lock);
    if (num_used * 2 < num_places || !grow()) {
        place *found = place_of(places, num_places, function);
        num_used += !found->function;
        *found = (place){function, binary};
    }
    pthread_mutex_unlock(&lock);
}

static const wrapper *binary_of(const void *function) {
    pthread_mutex_lock(&lock);
    const wrapper *found = num_places ? place_of(places, num_places, function)->binary : NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

void architectures_choose(const void *function, int capability, int *binary_version, int *ptx_version) {
    const wrapper *binary = binary_of(function);
    int code = 0, ptx = 0;
    if (binary && binary->magic == WRAPPER_MAGIC) {
        const container *all = binary->data;
        if (all && all->magic == CONTAINER_MAGIC) {
            const char *at = (const char *)all + all->header_size, *end = at + all->size;
            while (at + sizeof(entry) <= end) {
                const entry *one = (const entry *)at;
                int architecture = (int)one->architecture;
                if (one->kind == KIND_MACHINE_CODE && architecture / 10 == capability / 10 && architecture <= capability)
                    code = architecture > code ? architecture : code;
                if (one->kind == KIND_PTX && architecture <= capability) ptx = architecture > ptx ? architecture : ptx;
                if (!one->header_size) break;
                at += one->header_size + one->size;
            }
        }
    }
    *ptx_version = code ? code : ptx ? ptx : capability;
    *binary_version = code ? code : capability; /* PTX is compiled for the GPU itself */
}
