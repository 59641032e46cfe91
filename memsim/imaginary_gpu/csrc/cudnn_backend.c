/* libcudnn, the graph interface. A descriptor keeps the attributes it is given and returns them. An operation graph has
 * one engine, without workspace, knobs or notes; executing its plan does nothing. Numbers: cudnn_graph.h 9.28. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BACKEND_OK = 0, BACKEND_ALLOC_FAILED = 3000 };
enum { /* cudnnBackendAttributeType_t */
    TYPE_HANDLE = 0, TYPE_BOOLEAN = 2, TYPE_INT64 = 3, TYPE_DOUBLE = 5, TYPE_VOID_PTR = 6, TYPE_DESCRIPTOR = 15,
    TYPE_CHAR = 24, TYPE_FRACTION = 26,
};
enum { /* cudnnBackendAttributeName_t */
    HEURISTIC_RESULTS = 202, CONFIG_ENGINE = 300, CONFIG_WORKSPACE = 303, CONFIG_SHARED_MEMORY = 304,
    PLAN_WORKSPACE = 402, PLAN_JSON = 405, GRAPH_ENGINE_COUNT = 802, ENGINE_INDEX = 1301,
};

typedef struct attribute {
    int name, type;
    int64_t count;
    struct attribute *next;
    char value[];
} attribute;

typedef struct { int kind; attribute *attributes; } descriptor;

static size_t size_of(int type) {
    switch (type) {
    case TYPE_HANDLE: case TYPE_INT64: case TYPE_DOUBLE: case TYPE_VOID_PTR: case TYPE_DESCRIPTOR: return 8;
    case TYPE_BOOLEAN: case TYPE_CHAR: return 1;
    case TYPE_FRACTION: return 16;
    default: return 4; /* enumerations, float, int32 */
    }
}

int cudnnBackendCreateDescriptor(int kind, descriptor **made) {
    *made = calloc(1, sizeof **made);
    if (!*made) return BACKEND_ALLOC_FAILED;
    (*made)->kind = kind;
    return BACKEND_OK;
}

int cudnnBackendDestroyDescriptor(descriptor *made) {
    while (made && made->attributes) {
        attribute *first = made->attributes;
        made->attributes = first->next;
        free(first);
    }
    free(made);
    return BACKEND_OK;
}

int cudnnBackendFinalize(descriptor *made) { return (void)made, BACKEND_OK; }
int cudnnBackendExecute(void *handle, descriptor *plan, descriptor *pack) { return (void)handle, (void)plan, (void)pack, 0; }

static attribute *find(const descriptor *made, int name) {
    attribute *at = made->attributes;
    while (at && at->name != name) at = at->next;
    return at;
}

int cudnnBackendSetAttribute(descriptor *made, int name, int type, int64_t count, const void *values) {
    size_t size = size_of(type) * (size_t)count;
    attribute *added = malloc(sizeof *added + size);
    if (!added) return BACKEND_ALLOC_FAILED;
    *added = (attribute){.name = name, .type = type, .count = count, .next = made->attributes};
    if (size) memcpy(added->value, values, size);
    made->attributes = added; /* the newest of a name is found first */
    return BACKEND_OK;
}

/* What only the library knows. Returns the number of elements, or -1: ask the attributes that were set. */
static int64_t own_answer(const descriptor *made, int name, int64_t requested, void *values) {
    switch (name) {
    case HEURISTIC_RESULTS: case CONFIG_ENGINE: return 1; /* the caller's descriptors stay as they are: empty */
    case GRAPH_ENGINE_COUNT:
        if (values && requested) *(int64_t *)values = 1;
        return 1;
    case CONFIG_WORKSPACE: case PLAN_WORKSPACE:
        if (values && requested) *(int64_t *)values = 0;
        return 1;
    case CONFIG_SHARED_MEMORY:
        if (values && requested) *(int32_t *)values = 0;
        return 1;
    case ENGINE_INDEX:
        if (find(made, name)) return -1;
        if (values && requested) *(int64_t *)values = 0;
        return 1;
    case PLAN_JSON:
        if (values && requested > 2) memcpy(values, "{}", 3);
        return 3;
    default: return -1;
    }
}

int cudnnBackendGetAttribute(const descriptor *made, int name, int type, int64_t requested, int64_t *count, void *values) {
    int64_t num = own_answer(made, name, requested, values);
    if (num < 0) {
        const attribute *set = find(made, name);
        num = set ? set->count : 0;
        int64_t copied = num < requested ? num : requested;
        /* Descriptors that were set may be gone: only their number is known. */
        if (set && values && type != TYPE_DESCRIPTOR && copied > 0)
            memcpy(values, set->value, size_of(set->type) * (size_t)copied);
    }
    if (count) *count = num;
    return BACKEND_OK;
}
