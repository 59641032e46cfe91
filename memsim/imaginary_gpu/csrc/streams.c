/* Streams, graph capture and events. Work is done the moment it is asked for, so waiting never waits.
 * Only events can be held back, for programs that want to see what PyTorch does while other streams still work. */
#define _GNU_SOURCE
#include "device.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

struct igpu_stream {
    unsigned flags;
    int priority;
    unsigned long long id;
    unsigned long long capture_id;
    void *graph;
};

static atomic_ullong next_id = 16; /* small numbers are the names of the default streams */
static igpu_stream default_stream;

/* Handles 0, 1 and 2 name the default streams (cudaStreamLegacy, cudaStreamPerThread). */
static igpu_stream *known(const igpu_stream *stream) {
    return (uintptr_t)stream <= 2 ? &default_stream : (igpu_stream *)stream;
}

igpu_stream *igpu_stream_create(unsigned flags, int priority) {
    igpu_stream *stream = calloc(1, sizeof *stream);
    if (stream) *stream = (igpu_stream){.flags = flags, .priority = priority, .id = next_id++};
    return stream;
}

void igpu_stream_destroy(igpu_stream *stream) {
    if ((uintptr_t)stream > 2) free(stream);
}

unsigned igpu_stream_flags(const igpu_stream *stream) { return known(stream)->flags; }
int igpu_stream_priority(const igpu_stream *stream) { return known(stream)->priority; }
unsigned long long igpu_stream_id(const igpu_stream *stream) { return known(stream)->id; }
unsigned long long igpu_capture_id(const igpu_stream *stream) { return known(stream)->capture_id; }
void *igpu_capture_graph(const igpu_stream *stream) { return known(stream)->graph; }

void igpu_capture_begin(igpu_stream *stream) {
    known(stream)->capture_id = next_id++;
    known(stream)->graph = malloc(64); /* a graph holds nothing: replaying it does nothing */
}

void *igpu_capture_end(igpu_stream *stream) {
    known(stream)->capture_id = 0;
    return known(stream)->graph;
}

struct igpu_event {
    struct timespec time;
    unsigned long long number; /* 0: not recorded */
};

static atomic_int held;
static atomic_ullong recorded, finished; /* events up to `finished` are done even while events are held */

igpu_event *igpu_event_create(void) { return calloc(1, sizeof(igpu_event)); }

void igpu_event_record(igpu_event *event) {
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    event->number = ++recorded;
}

int igpu_event_done(const igpu_event *event) { return !held || event->number <= finished; }

/* Streams are not told apart: what was recorded before the event is done as well. */
void igpu_event_wait(const igpu_event *event) {
    unsigned long long before = finished;
    while (before < event->number && !atomic_compare_exchange_weak(&finished, &before, event->number)) {}
}

void igpu_events_finish(void) { finished = recorded; }

void igpu_events_hold(int hold) { held = hold; }

double igpu_event_milliseconds(const igpu_event *event) {
    return (double)event->time.tv_sec * 1e3 + (double)event->time.tv_nsec / 1e6;
}
