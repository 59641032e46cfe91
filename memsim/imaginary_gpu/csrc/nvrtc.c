/* libnvrtc: compiles anything to an empty binary. The name that a kernel was asked for is its lowered name. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int nvrtcVersion(int *major, int *minor) { return *major = CUDA_VERSION / 1000, *minor = CUDA_VERSION % 1000 / 10, 0; }
const char *nvrtcGetErrorString(int error) { return error ? "error of the imaginary GPU" : "NVRTC_SUCCESS"; }
int nvrtcCreateProgram(void **program) { return *program = calloc(1, 64), *program ? 0 : 1; }
int nvrtcDestroyProgram(void **program) { return free(*program), *program = NULL, 0; }

static int one_byte(void *program, size_t *size) { return (void)program, *size = 1, 0; }
static int no_text(void *program, char *text) { return (void)program, *text = 0, 0; }

int nvrtcGetProgramLogSize(void *program, size_t *size) { return one_byte(program, size); }
int nvrtcGetPTXSize(void *program, size_t *size) { return one_byte(program, size); }
int nvrtcGetCUBINSize(void *program, size_t *size) { return one_byte(program, size); }
int nvrtcGetProgramLog(void *program, char *text) { return no_text(program, text); }
int nvrtcGetPTX(void *program, char *text) { return no_text(program, text); }
int nvrtcGetCUBIN(void *program, char *text) { return no_text(program, text); }

int nvrtcGetLoweredName(void *program, const char *expression, const char **name) {
    (void)program;
    *name = expression;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *num) { return *num = 0, 0; }
