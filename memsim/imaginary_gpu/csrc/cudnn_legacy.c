/* libcudnn, the classic interface. */
#include <stdlib.h>

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
int cudnnCreate(void **handle) { return *handle = calloc(1, 64), *handle ? 0 : 2; }

int cudnnGetProperty(int part, int *value) { /* libraryPropertyType: major, minor, patch */
    *value = part == 0 ? CUDNN_VERSION / 10000 : part == 1 ? CUDNN_VERSION / 100 % 100 : CUDNN_VERSION % 100;
    return 0;
}
