/* The GPU that MEMSIM_GPU describes: "name=NVIDIA L4;memory=23..;cc=8.9;sms=58;l2=50331648;devices=1". */
#include "device.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUDA C++ Programming Guide 13.0, "Compute Capabilities", table "Technical Specifications per Compute Capability":
 * resident threads and blocks of a multiprocessor, its shared memory, and the largest shared memory of one block. */
static const struct { int capability, threads, blocks, shared_kib, block_kib; } LIMITS[] = {
    {70, 2048, 32, 96, 96},   {75, 1024, 16, 64, 64},   {80, 2048, 32, 164, 163}, {86, 1536, 16, 100, 99},
    {87, 1536, 16, 164, 163}, {89, 1536, 24, 100, 99},  {90, 2048, 32, 228, 227}, {100, 2048, 32, 228, 227},
    {103, 2048, 32, 228, 227}, {110, 1536, 24, 228, 227}, {120, 1536, 24, 100, 99}, {121, 1536, 24, 100, 99},
};

static igpu_settings settings;
static int valid;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *field(const char *text, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *at = text; at; at = strchr(at, ';')) {
        at += *at == ';';
        if (strncmp(at, key, length) == 0 && at[length] == '=') {
            const char *end = strchr(at, ';');
            size_t num = end ? (size_t)(end - at) - length - 1 : strlen(at) - length - 1;
            snprintf(value, size, "%.*s", (int)num, at + length + 1);
            return value;
        }
    }
    return NULL;
}

static size_t number(const char *text, const char *key) {
    char value[64];
    return field(text, key, value, sizeof value) ? (size_t)strtoull(value, NULL, 10) : 0;
}

static int limits(void) {
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++) {
        if (LIMITS[i].capability != settings.major * 10 + settings.minor) continue;
        settings.max_threads_per_multiprocessor = LIMITS[i].threads;
        settings.max_blocks_per_multiprocessor = LIMITS[i].blocks;
        settings.shared_bytes_per_multiprocessor = (size_t)LIMITS[i].shared_kib << 10;
        settings.shared_bytes_per_block_optin = (size_t)LIMITS[i].block_kib << 10;
        return 1;
    }
    return 0;
}

static void parse(void) {
    const char *text = getenv("MEMSIM_GPU");
    char capability[16];
    if (text && field(text, "name", settings.name, sizeof settings.name) && field(text, "cc", capability, sizeof capability)) {
        settings.memory_bytes = number(text, "memory");
        settings.l2_bytes = number(text, "l2");
        settings.num_multiprocessors = (int)number(text, "sms");
        settings.num_devices = (int)number(text, "devices");
        valid = sscanf(capability, "%d.%d", &settings.major, &settings.minor) == 2 && limits() && settings.memory_bytes &&
                settings.num_multiprocessors && settings.num_devices > 0 && settings.num_devices <= IGPU_MAX_DEVICES;
    }
    if (!valid)
        fprintf(stderr, "memsim: MEMSIM_GPU=%s does not describe a GPU; the imaginary GPU is not there\n", text ? text : "");
}

const igpu_settings *igpu_gpu(void) {
    pthread_once(&once, parse);
    return valid ? &settings : NULL;
}

void igpu_unmodeled(const char *function) {
    static int log = -1;
    if (log < 0) log = getenv("MEMSIM_GPU_LOG") != NULL;
    if (log) fprintf(stderr, "memsim: %s only returns success\n", function);
}
