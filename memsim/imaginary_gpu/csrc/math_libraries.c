/* cuBLAS, cuBLASLt, cuSPARSE, cuSPARSELt, cuSOLVER, cuFFT and cuRAND: handles are made, questions about sizes answered,
 * work is not done. Compiled into each library with only that library's part; further sizes are in ../answers.txt. None asks for workspace of its own: what
 * PyTorch sets aside for cuBLAS and cuBLASLt it allocates itself. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline int handle(void **made) {
    *made = calloc(1, 64);
    return *made ? 0 : 3; /* ALLOC_FAILED in all of these libraries is 3 (cuSPARSE and cuSOLVER: 2, also an error) */
}

#ifdef LIBRARY_cublas
static struct { int math, pointer, atomics; void *stream; } state; /* asked back by the code that sets it for a while */

int cublasCreate_v2(void **made) { return handle(made); }
int cublasDestroy_v2(void *made) { return free(made), 0; }
int cublasGetVersion_v2(void *cublas, int *version) { return (void)cublas, *version = CUBLAS_VERSION, 0; }
int cublasSetStream_v2(void *cublas, void *stream) { return (void)cublas, state.stream = stream, 0; }
int cublasGetStream_v2(void *cublas, void **stream) { return (void)cublas, *stream = state.stream, 0; }
int cublasSetMathMode(void *cublas, int mode) { return (void)cublas, state.math = mode, 0; }
int cublasGetMathMode(void *cublas, int *mode) { return (void)cublas, *mode = state.math, 0; }
int cublasSetPointerMode_v2(void *cublas, int mode) { return (void)cublas, state.pointer = mode, 0; }
int cublasGetPointerMode_v2(void *cublas, int *mode) { return (void)cublas, *mode = state.pointer, 0; }
int cublasSetAtomicsMode(void *cublas, int mode) { return (void)cublas, state.atomics = mode, 0; }
int cublasGetAtomicsMode(void *cublas, int *mode) { return (void)cublas, *mode = state.atomics, 0; }
const char *cublasGetStatusString(int status) { return status ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_SUCCESS"; }
const char *cublasGetStatusName(int status) { return cublasGetStatusString(status); }

/* A host scalar that the caller reads back (dot, norm) is zero. */
int cublasSdot_v2(void *cublas, int n, const void *x, int ix, const void *y, int iy, float *result) {
    (void)cublas, (void)n, (void)x, (void)ix, (void)y, (void)iy;
    if (state.pointer == 0) *result = 0;
    return 0;
}
#endif

#ifdef LIBRARY_cublasLt
typedef struct { uint64_t algorithm[8]; size_t workspace; int status; float waves; int reserved[4]; } heuristic; /* cublasLt.h */

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
int cublasLtCreate(void **made) { return handle(made); }
int cublasLtDestroy(void *made) { return free(made), 0; }
int cublasLtMatmulDescCreate(void **made) { return handle(made); }
int cublasLtMatmulDescDestroy(void *made) { return free(made), 0; }
int cublasLtMatrixLayoutCreate(void **made) { return handle(made); }
int cublasLtMatrixLayoutDestroy(void *made) { return free(made), 0; }
int cublasLtMatrixTransformDescCreate(void **made) { return handle(made); }
int cublasLtMatrixTransformDescDestroy(void *made) { return free(made), 0; }
int cublasLtMatmulPreferenceCreate(void **made) { return handle(made); }
int cublasLtMatmulPreferenceDestroy(void *made) { return free(made), 0; }

int cublasLtMatmulAlgoGetHeuristic(void *lt, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int requested, heuristic *results, int *num_results) {
    (void)lt, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (requested > 0) memset(results, 0, sizeof *results);
    *num_results = requested > 0;
    return 0;
}
#endif

#ifdef LIBRARY_cusparse
int cusparseCreate(void **made) { return handle(made); }
int cusparseDestroy(void *made) { return free(made), 0; }
int cusparseGetPointerMode(void *cusparse, int *mode) { return (void)cusparse, *mode = 0, 0; }
int cusparseGetVersion(void *cusparse, int *version) { return (void)cusparse, *version = CUDA_VERSION, 0; }
const char *cusparseGetErrorString(int status) { return status ? "error of the imaginary GPU" : "success"; }
#endif

#ifdef LIBRARY_cusolver
int cusolverDnCreate(void **made) { return handle(made); }
int cusolverDnDestroy(void *made) { return free(made), 0; }
int cusolverGetVersion(int *version) { return *version = CUDA_VERSION, 0; }
#endif

#ifdef LIBRARY_cufft
int cufftCreate(int *plan) { static int last; return *plan = ++last, 0; }
int cufftGetVersion(int *version) { return *version = CUDA_VERSION, 0; }

int cufftXtMakePlanMany(int plan, int rank, long long *n, long long *inembed, long long istride, long long idist, int itype,
                        long long *onembed, long long ostride, long long odist, int otype, long long batch, size_t *workspace,
                        int type) {
    (void)plan, (void)rank, (void)n, (void)inembed, (void)istride, (void)idist, (void)itype, (void)onembed, (void)ostride;
    (void)odist, (void)otype, (void)batch, (void)type;
    *workspace = 0;
    return 0;
}

int cufftGetSize(int plan, size_t *size) { return (void)plan, *size = 0, 0; }
#endif

#ifdef LIBRARY_cusparseLt
int cusparseLtMatmulGetWorkspace(const void *lt, const void *plan, size_t *size) { return (void)lt, (void)plan, *size = 0, 0; }

int cusparseLtSpMMACompressedSize2(const void *lt, const void *matrix, size_t *compressed, size_t *buffer) {
    (void)lt, (void)matrix;
    return *compressed = 0, *buffer = 0, 0;
}
#endif

#ifdef LIBRARY_curand
int curandCreateGenerator(void **made) { return handle(made); }
#endif
