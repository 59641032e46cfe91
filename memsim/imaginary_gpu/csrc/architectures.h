/* Which compiled form of a kernel the driver would load. */
#ifndef MEMSIM_ARCHITECTURES_H
#define MEMSIM_ARCHITECTURES_H

void architectures_register(const void *function, const void *binary);
void architectures_choose(const void *function, int capability, int *binary_version, int *ptx_version);

#endif
