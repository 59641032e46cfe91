/* libnccl: communicators of any size are made. A collective leaves what it would if every other rank held the same as this
 * one, sums left out: PyTorch compares shapes and counts between ranks this way. NCCL's own buffers (part of what nvidia-smi
 * shows, outside PyTorch's allocator) are not there. Numbers: nccl.h 2.29. */
#include "device.h"
#include <stdlib.h>
#include <string.h>

int cudaMalloc(void **address, size_t num_bytes);
int cudaFree(void *address);

typedef struct { int num_ranks, rank, device; } communicator;

static int make(communicator **made, int num_ranks, int rank) {
    *made = calloc(1, sizeof **made);
    if (!*made) return 2; /* ncclSystemError */
    (*made)->num_ranks = num_ranks;
    (*made)->rank = rank;
    return 0;
}

int ncclGetVersion(int *version) { return *version = NCCL_VERSION, 0; }
const char *ncclGetErrorString(int error) { return error ? "error of the imaginary GPU" : "no error"; }
const char *ncclGetLastError(const void *made) { return (void)made, ""; }
int ncclGetUniqueId(char id[128]) { return memset(id, 1, 128), 0; }

typedef struct { char bytes[128]; } unique_id;

int ncclCommInitRank(communicator **made, int num_ranks, unique_id id, int rank) { return (void)id, make(made, num_ranks, rank); }

int ncclCommInitRankConfig(communicator **made, int num_ranks, unique_id id, int rank, void *config) {
    (void)id, (void)config;
    return make(made, num_ranks, rank);
}

int ncclCommInitRankScalable(communicator **made, int num_ranks, int rank, int num_ids, void *ids, void *config) {
    (void)num_ids, (void)ids, (void)config;
    return make(made, num_ranks, rank);
}

int ncclCommInitAll(communicator **made, int num_devices, const int *devices) {
    (void)devices;
    for (int rank = 0; rank < num_devices; rank++)
        if (make(&made[rank], num_devices, rank)) return 2;
    return 0;
}

int ncclCommSplit(communicator *from, int color, int key, communicator **made, void *config) {
    (void)color, (void)key, (void)config;
    return make(made, from->num_ranks, from->rank);
}

int ncclCommShrink(communicator *from, int *ranks, int num, communicator **made, void *config, int flags) {
    (void)ranks, (void)config, (void)flags;
    return make(made, from->num_ranks - num, from->rank);
}

int ncclCommDestroy(communicator *made) { return free(made), 0; }
int ncclCommAbort(communicator *made) { return free(made), 0; }
int ncclCommCount(const communicator *made, int *count) { return *count = made->num_ranks, 0; }
int ncclCommUserRank(const communicator *made, int *rank) { return *rank = made->rank, 0; }
int ncclCommCuDevice(const communicator *made, int *device) { return *device = made->device, 0; }
int ncclCommGetAsyncError(communicator *made, int *error) { return (void)made, *error = 0, 0; }
int ncclMemAlloc(void **address, size_t num_bytes) { return cudaMalloc(address, num_bytes) ? 1 : 0; }
int ncclMemFree(void *address) { return cudaFree(address) ? 1 : 0; }

int ncclCommRegister(communicator *made, void *buffer, size_t num_bytes, void **handle) {
    (void)made, (void)num_bytes;
    return *handle = buffer, 0;
}

int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence, communicator *made) {
    (void)scalar, (void)type, (void)residence, (void)made;
    return *operation = 5, 0;
}

static size_t size_of(int type) { /* ncclDataType_t */
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && (size_t)type < sizeof sizes ? sizes[type] : 1;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, communicator *made, void *stream) {
    (void)operation, (void)made, (void)stream;
    return igpu_copy(to, from, count * size_of(type)), 0;
}

int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, communicator *made, void *stream) {
    (void)operation, (void)stream;
    if (made->rank == root) igpu_copy(to, from, count * size_of(type));
    return 0;
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, communicator *made, void *stream) {
    (void)root, (void)made, (void)stream;
    return igpu_copy(to, from, count * size_of(type)), 0;
}

static int gather(const void *from, char *to, size_t num_bytes, const communicator *made) {
    for (int rank = 0; rank < made->num_ranks; rank++) igpu_copy(to + (size_t)rank * num_bytes, from, num_bytes);
    return 0;
}

int ncclAllGather(const void *from, void *to, size_t count, int type, communicator *made, void *stream) {
    (void)stream;
    return gather(from, to, count * size_of(type), made);
}

int ncclReduceScatter(const char *from, void *to, size_t count, int type, int operation, communicator *made, void *stream) {
    (void)operation, (void)stream;
    size_t num_bytes = count * size_of(type);
    return igpu_copy(to, from + (size_t)made->rank * num_bytes, num_bytes), 0;
}

int ncclAlltoAll(const char *from, void *to, size_t count, int type, communicator *made, void *stream) {
    (void)stream;
    size_t num_bytes = count * size_of(type);
    return gather(from + (size_t)made->rank * num_bytes, to, num_bytes, made);
}

/* What was sent last is what is received next: exact for a rank that sends to itself. */
static __thread const void *sent;

int ncclSend(const void *from, size_t count, int type, int peer, communicator *made, void *stream) {
    (void)count, (void)type, (void)peer, (void)made, (void)stream;
    return sent = from, 0;
}

int ncclRecv(void *to, size_t count, int type, int peer, communicator *made, void *stream) {
    (void)peer, (void)made, (void)stream;
    if (sent) igpu_copy(to, sent, count * size_of(type));
    return 0;
}
