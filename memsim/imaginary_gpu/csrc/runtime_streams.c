/* libcudart: streams, events, graphs. Everything is finished when the call returns, but for events that are held. */
#include "cuda_abi.h"
#include "device.h"
#include "runtime.h"
#include <stdlib.h>

int cudaStreamCreateWithPriority(igpu_stream **stream, unsigned flags, int priority) {
    *stream = igpu_stream_create(flags, priority);
    return runtime_fail(*stream ? CU_OK : CU_OUT_OF_MEMORY);
}

int cudaStreamCreateWithFlags(igpu_stream **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamCreate(igpu_stream **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamDestroy(igpu_stream *stream) {
    igpu_stream_destroy(stream);
    return CU_OK;
}

int cudaStreamGetPriority(igpu_stream *stream, int *priority) {
    *priority = igpu_stream_priority(stream);
    return CU_OK;
}

int cudaStreamGetFlags(igpu_stream *stream, unsigned *flags) {
    *flags = igpu_stream_flags(stream);
    return CU_OK;
}

int cudaStreamGetId(igpu_stream *stream, unsigned long long *id) {
    *id = igpu_stream_id(stream);
    return CU_OK;
}

int cudaStreamGetDevice(igpu_stream *stream, int *device) {
    (void)stream;
    *device = runtime_device();
    return CU_OK;
}

int cudaLaunchHostFunc(igpu_stream *stream, void (*function)(void *), void *data) {
    if (!igpu_capture_id(stream)) function(data);
    return CU_OK;
}

int cudaStreamAddCallback(igpu_stream *stream, void (*callback)(igpu_stream *, int, void *), void *data, unsigned flags) {
    (void)flags;
    callback(stream, CU_OK, data);
    return CU_OK;
}

/* Capture: the allocator sees that a stream captures and uses its private pool; the graph itself holds nothing. */
int cudaStreamBeginCapture(igpu_stream *stream, int mode) {
    (void)mode;
    igpu_capture_begin(stream);
    return CU_OK;
}

int cudaStreamEndCapture(igpu_stream *stream, void **graph) {
    *graph = igpu_capture_end(stream);
    return CU_OK;
}

int cudaStreamIsCapturing(igpu_stream *stream, int *status) {
    *status = igpu_capture_id(stream) ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return CU_OK;
}

static int capture_info(igpu_stream *stream, int *status, unsigned long long *id, void **graph, const void **dependencies) {
    *status = igpu_capture_id(stream) ? CAPTURE_ACTIVE : CAPTURE_NONE;
    if (id) *id = igpu_capture_id(stream);
    if (graph) *graph = igpu_capture_graph(stream);
    if (dependencies) *dependencies = NULL;
    return CU_OK;
}

int cudaStreamGetCaptureInfo_v2(igpu_stream *stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, size_t *num_dependencies) {
    if (num_dependencies) *num_dependencies = 0;
    return capture_info(stream, status, id, graph, dependencies);
}

int cudaStreamGetCaptureInfo_v3(igpu_stream *stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, const void **edges, size_t *num_dependencies) {
    if (edges) *edges = NULL;
    if (num_dependencies) *num_dependencies = 0;
    return capture_info(stream, status, id, graph, dependencies);
}

#if CUDA_MAJOR >= 13
int cudaStreamGetCaptureInfo(igpu_stream *stream, int *status, unsigned long long *id, void **graph,
                             const void **dependencies, const void **edges, size_t *num_dependencies) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, num_dependencies);
}
#else
int cudaStreamGetCaptureInfo(igpu_stream *stream, int *status, unsigned long long *id) {
    return capture_info(stream, status, id, NULL, NULL);
}
#endif

int cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current;
    int before = current;
    current = *mode;
    *mode = before;
    return CU_OK;
}

int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    (void)flags;
    *executable = graph;
    return CU_OK;
}

int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

int cudaGraphCreate(void **graph, unsigned flags) {
    (void)flags;
    *graph = malloc(64);
    return CU_OK;
}

int cudaGraphGetNodes(void *graph, void **nodes, size_t *num_nodes) {
    if (nodes && *num_nodes) *nodes = graph;
    *num_nodes = 1; /* PyTorch warns of a graph without nodes */
    return CU_OK;
}

/* Events */
int cudaEventCreateWithFlags(igpu_event **event, unsigned flags) {
    (void)flags;
    *event = igpu_event_create();
    return runtime_fail(*event ? CU_OK : CU_OUT_OF_MEMORY);
}

int cudaEventCreate(igpu_event **event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(igpu_event *event) {
    free(event);
    return CU_OK;
}

int cudaEventRecord(igpu_event *event, igpu_stream *stream) {
    (void)stream;
    igpu_event_record(event);
    return CU_OK;
}

int cudaEventRecordWithFlags(igpu_event *event, igpu_stream *stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}

int cudaEventQuery(igpu_event *event) { return runtime_fail(igpu_event_done(event) ? CU_OK : CU_NOT_READY); }

int cudaEventSynchronize(igpu_event *event) {
    igpu_event_wait(event);
    return CU_OK;
}

int cudaDeviceSynchronize(void) {
    igpu_events_finish();
    return CU_OK;
}

int cudaStreamSynchronize(igpu_stream *stream) {
    (void)stream;
    return cudaDeviceSynchronize();
}

int cudaEventElapsedTime(float *milliseconds, igpu_event *start, igpu_event *end) {
    *milliseconds = (float)(igpu_event_milliseconds(end) - igpu_event_milliseconds(start));
    return CU_OK;
}

int cudaEventElapsedTime_v2(float *milliseconds, igpu_event *start, igpu_event *end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}
