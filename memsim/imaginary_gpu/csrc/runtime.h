/* What the files of libcudart share. */
#ifndef MEMSIM_RUNTIME_H
#define MEMSIM_RUNTIME_H

int runtime_fail(int error);   /* remembers an error for cudaGetLastError and returns it */
int runtime_device(void);      /* the calling thread's current device */

#endif
