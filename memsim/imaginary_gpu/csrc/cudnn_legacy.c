/* libcudnn, the classic interface: descriptors remember what they were given, questions about sizes are answered.
 *
 * cuDNN's sizes are not published. Chosen here: no workspace for convolutions, batch normalisation and CTC; for recurrent
 * networks what any implementation must keep (see rnn_temporary). Numbers: cudnn_ops.h, cudnn_adv.h, cudnn_cnn.h 9.28. */
#include "device.h"
#include <stdlib.h>
#include <string.h>

enum { CUDNN_OK = 0, CUDNN_BAD_PARAM = 2000, CUDNN_ALLOC_FAILED = 3000 };
enum { LSTM = 2, GRU = 3 };

static int make(void **made, size_t size) { return (*made = calloc(1, size)) ? CUDNN_OK : CUDNN_ALLOC_FAILED; }

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION; }
const char *cudnnGetErrorString(int status) { return status ? "error of the imaginary GPU" : "CUDNN_STATUS_SUCCESS"; }

void cudnnGetLastErrorString(char *text, size_t size) {
    if (size) *text = 0;
}

int cudnnGetProperty(int part, int *value) { /* libraryPropertyType: major, minor, patch */
    *value = part == 0 ? CUDNN_VERSION / 10000 : part == 1 ? CUDNN_VERSION / 100 % 100 : CUDNN_VERSION % 100;
    return CUDNN_OK;
}

typedef struct { void *stream; } context;

int cudnnCreate(void **handle) { return make(handle, sizeof(context)); }
int cudnnDestroy(void *handle) { return free(handle), CUDNN_OK; }
int cudnnSetStream(context *handle, void *stream) { return handle->stream = stream, CUDNN_OK; }
int cudnnGetStream(context *handle, void **stream) { return *stream = handle->stream, CUDNN_OK; }

/* Descriptors without questions */
#define DESCRIPTOR(name)                                                              \
    int cudnnCreate##name##Descriptor(void **made) { return make(made, 64); }         \
    int cudnnDestroy##name##Descriptor(void *made) { return free(made), CUDNN_OK; }
DESCRIPTOR(Activation)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(Convolution)
DESCRIPTOR(Dropout)
DESCRIPTOR(LRN)
DESCRIPTOR(OpTensor)
DESCRIPTOR(Pooling)
DESCRIPTOR(ReduceTensor)
DESCRIPTOR(SpatialTransformer)

/* Tensors and filters */
typedef struct { int type, num_dims, dims[8], strides[8], format; } tensor;

int cudnnCreateTensorDescriptor(void **made) { return make(made, sizeof(tensor)); }
int cudnnDestroyTensorDescriptor(void *made) { return free(made), CUDNN_OK; }
int cudnnCreateFilterDescriptor(void **made) { return make(made, sizeof(tensor)); }
int cudnnDestroyFilterDescriptor(void *made) { return free(made), CUDNN_OK; }

static int set_dims(tensor *made, int type, int num, const int *dims, const int *strides) {
    if (num < 0 || num > 8) return CUDNN_BAD_PARAM;
    made->type = type;
    made->num_dims = num;
    memcpy(made->dims, dims, sizeof(int) * (size_t)num);
    if (strides) memcpy(made->strides, strides, sizeof(int) * (size_t)num);
    return CUDNN_OK;
}

int cudnnSetTensorNdDescriptor(tensor *made, int type, int num, const int *dims, const int *strides) {
    return set_dims(made, type, num, dims, strides);
}

int cudnnGetTensorNdDescriptor(const tensor *made, int requested, int *type, int *num, int *dims, int *strides) {
    *type = made->type;
    *num = made->num_dims;
    for (int i = 0; i < requested && i < made->num_dims; i++) {
        dims[i] = made->dims[i];
        strides[i] = made->strides[i];
    }
    return CUDNN_OK;
}

int cudnnSetFilterNdDescriptor(tensor *made, int type, int format, int num, const int *dims) {
    made->format = format;
    return set_dims(made, type, num, dims, NULL);
}

int cudnnGetFilterNdDescriptor(const tensor *made, int requested, int *type, int *format, int *num, int *dims) {
    *type = made->type;
    *format = made->format;
    *num = made->num_dims;
    for (int i = 0; i < requested && i < made->num_dims; i++) dims[i] = made->dims[i];
    return CUDNN_OK;
}

/* Convolutions: one algorithm, without workspace */
typedef struct {
    int algorithm, status;
    float time;
    size_t workspace;
    int determinism, math_type, reserved[3];
} performance; /* cudnnConvolutionFwdAlgoPerf_t and its two sisters */

static int one_algorithm(int requested, int *returned, performance *results) {
    *returned = requested > 0;
    if (requested > 0) {
        memset(results, 0, sizeof *results);
        results->algorithm = 1;
        results->determinism = 1;
    }
    return CUDNN_OK;
}

#define ALGORITHMS(direction)                                                                                          \
    int cudnnGetConvolution##direction##Algorithm_v7(void *handle, void *a, void *b, void *c, void *d, int requested,  \
                                                     int *returned, performance *results) {                            \
        return one_algorithm(requested, returned, results);                                                            \
    }                                                                                                                  \
    int cudnnFindConvolution##direction##AlgorithmEx(void *handle, void *a, void *x, void *b, void *y, void *c, void *d, \
                                                     void *z, int requested, int *returned, performance *results,      \
                                                     void *workspace, size_t size) {                                   \
        return one_algorithm(requested, returned, results);                                                            \
    }                                                                                                                  \
    int cudnnGetConvolution##direction##WorkspaceSize(void *handle, void *a, void *b, void *c, void *d, int algorithm, \
                                                      size_t *size) {                                                  \
        return *size = 0, CUDNN_OK;                                                                                    \
    }
ALGORITHMS(Forward)
ALGORITHMS(BackwardData)
ALGORITHMS(BackwardFilter)

/* Batch normalisation and CTC: no workspace, nothing reserved */
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int ops, void *x, void *z, void *y,
                                                             void *scale, void *activation, size_t *size) {
    return *size = 0, CUDNN_OK;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int ops, void *x, void *y, void *dy, void *dz,
                                                      void *dx, void *scale, void *activation, size_t *size) {
    return *size = 0, CUDNN_OK;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int ops, void *activation, void *x,
                                                         size_t *size) {
    return *size = 0, CUDNN_OK;
}

int cudnnGetCTCLossWorkspaceSize(void *handle, void *probabilities, void *gradients, void *labels, void *label_lengths,
                                 void *input_lengths, int algorithm, void *loss, size_t *size) {
    return *size = 0, CUDNN_OK;
}

int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *loss, void *probabilities, void *gradients,
                                    size_t *size) {
    return *size = 0, CUDNN_OK;
}

/* Dropout: a random generator's state for each resident thread, 12 bytes each */
int cudnnDropoutGetStatesSize(void *handle, size_t *size) {
    const igpu_settings *gpu = igpu_gpu();
    if (!gpu) return CUDNN_BAD_PARAM;
    *size = (size_t)gpu->num_multiprocessors * 1024 * 12;
    return CUDNN_OK;
}

/* Recurrent networks */
typedef struct {
    int mode, bias, bidirectional, type, input, hidden, projection, num_layers;
} recurrent;

typedef struct { int type, max_length, batch_size, vector_size; } sequence;

int cudnnCreateRNNDescriptor(void **made) { return make(made, sizeof(recurrent)); }
int cudnnDestroyRNNDescriptor(void *made) { return free(made), CUDNN_OK; }
int cudnnCreateRNNDataDescriptor(void **made) { return make(made, sizeof(sequence)); }
int cudnnDestroyRNNDataDescriptor(void *made) { return free(made), CUDNN_OK; }

int cudnnSetRNNDescriptor_v8(recurrent *rnn, int algorithm, int mode, int bias, int direction, int input_mode, int type,
                             int math, int math_type, int input, int hidden, int projection, int num_layers, void *dropout,
                             unsigned flags) {
    *rnn = (recurrent){mode, bias, direction, type, input, hidden, projection, num_layers};
    return CUDNN_OK;
}

int cudnnSetRNNDataDescriptor(sequence *data, int type, int layout, int max_length, int batch_size, int vector_size,
                              const int *lengths, void *padding) {
    *data = (sequence){type, max_length, batch_size, vector_size};
    return CUDNN_OK;
}

static size_t element_size(int type) { return type == 0 ? 4 : type == 1 ? 8 : 2; } /* float, double, half or bfloat16 */
static size_t gates(const recurrent *rnn) { return rnn->mode == LSTM ? 4 : rnn->mode == GRU ? 3 : 1; }
static size_t biases(const recurrent *rnn) { return rnn->bias == 0 ? 0 : rnn->bias == 2 ? 2 : 1; }
static size_t directions(const recurrent *rnn) { return rnn->bidirectional ? 2 : 1; }

static size_t width(const recurrent *rnn) { /* of a layer's output in one direction */
    return (size_t)(rnn->projection ? rnn->projection : rnn->hidden);
}

static size_t layer_input(const recurrent *rnn, size_t pseudo_layer) {
    return pseudo_layer < directions(rnn) ? (size_t)rnn->input : width(rnn) * directions(rnn);
}

static size_t layer_weights(const recurrent *rnn, size_t pseudo_layer) {
    size_t hidden = (size_t)rnn->hidden, projected = hidden != width(rnn) ? hidden * width(rnn) : 0;
    return gates(rnn) * hidden * (layer_input(rnn, pseudo_layer) + width(rnn)) + projected;
}

static size_t pseudo_layers(const recurrent *rnn) { return (size_t)rnn->num_layers * directions(rnn); }

/* All weights, layer by layer, then all biases: the order that PyTorch's parameters come out in. */
int cudnnGetRNNWeightSpaceSize(void *handle, const recurrent *rnn, size_t *size) {
    size_t num = pseudo_layers(rnn) * gates(rnn) * biases(rnn) * (size_t)rnn->hidden;
    for (size_t layer = 0; layer < pseudo_layers(rnn); layer++) num += layer_weights(rnn, layer);
    *size = num * element_size(rnn->type);
    return CUDNN_OK;
}

/* An absent part has no address and a shape without elements. */
static void describe(tensor *made, int type, size_t rows, size_t columns, char **address, const char *start, size_t offset) {
    int is_there = rows && columns;
    const int dims[3] = {1, (int)rows, (int)columns}, strides[3] = {(int)(rows * columns), (int)columns, 1};
    if (made) set_dims(made, type, 3, dims, strides);
    if (address) *address = is_there ? (char *)start + offset * element_size(type) : NULL;
}

/* The matrix and the bias of one gate; `id` counts the gates of the input, then of the recurrence, then the projection. */
int cudnnGetRNNWeightParams(void *handle, const recurrent *rnn, int layer, size_t size, const char *space, int id,
                            tensor *matrix, char **matrix_address, tensor *bias, char **bias_address) {
    size_t hidden = (size_t)rnn->hidden, input = layer_input(rnn, (size_t)layer), num = gates(rnn), at = 0, bias_at = 0;
    size_t gate = (size_t)id;
    int is_projection = gate == 2 * num, is_recurrent = gate >= num;
    for (size_t before = 0; before < pseudo_layers(rnn); before++) {
        if (before < (size_t)layer) at += layer_weights(rnn, before);
        bias_at += layer_weights(rnn, before);
    }
    at += is_recurrent ? num * hidden * input + (gate - num) * hidden * width(rnn) : gate * hidden * input;
    bias_at += ((size_t)layer * biases(rnn) * num + gate) * hidden;
    int has_projection = hidden != width(rnn), has_bias = !is_projection && gate < biases(rnn) * num;
    size_t rows = is_projection ? (has_projection ? width(rnn) : 0) : hidden;
    size_t columns = is_projection ? hidden : is_recurrent ? width(rnn) : input;
    describe(matrix, rnn->type, rows, columns, matrix_address, space, at);
    describe(bias, rnn->type, has_bias ? hidden : 0, has_bias, bias_address, space, bias_at);
    return CUDNN_OK;
}

/* Kept for the backward pass: of every step and layer the gates, an LSTM's cell, and the output; used within a pass: the
 * gates of one layer. cuDNN keeps at least this. */
int cudnnGetRNNTempSpaceSizes(void *handle, const recurrent *rnn, int training, const sequence *data, size_t *workspace,
                              size_t *reserve) {
    size_t steps = (size_t)data->max_length * (size_t)data->batch_size, hidden = (size_t)rnn->hidden;
    size_t kept = gates(rnn) + (rnn->mode == LSTM) + 1;
    if (workspace) *workspace = steps * hidden * gates(rnn) * directions(rnn) * element_size(rnn->type);
    if (reserve) *reserve = training ? steps * hidden * kept * pseudo_layers(rnn) * element_size(rnn->type) : 0;
    return CUDNN_OK;
}
