"""What a process takes of a GPU before PyTorch's allocator asks for anything: driver structures and loaded kernels.

There is no table by NVIDIA; every figure was printed by somebody's nvidia-smi. Kernels are loaded when they are first
used (CUDA_MODULE_LOADING=LAZY, PyTorch's own choice since 1.13), so the context grows during the first step: a build of
torch 1.13 took 274 MiB lazily and 636 MiB with every kernel loaded (pytorch pull request 86509).
"""

from __future__ import annotations

from dataclasses import dataclass

from memsim.units import MIB, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaContext:
    """The size of a CUDA context and where it was read."""

    nbytes: int
    """Bytes of device memory outside of PyTorch's allocator."""
    measured: bool
    """Whether it was measured on this GPU; else it is what is usual."""
    source: str
    """Who measured it, with which versions."""

    @property
    def sentence(self) -> str:
        """Return how sure the figure is, for the user."""
        if self.measured:
            return f"The CUDA context takes {format_bytes(self.nbytes)}, as measured on this GPU ({self.source})."
        return (
            f"The CUDA context takes {format_bytes(self.nbytes)}, which is usual ({self.source}); "
            "250 to 700 MiB were seen, by GPU, driver and kernels used."
        )


_MEASURED = {
    "NVIDIA GeForce RTX 3090": CudaContext(
        nbytes=256 * MIB, measured=True, source="torch 2.7.1+cu128, driver 610: invoke-ai/InvokeAI issue 9413"
    ),
    "NVIDIA RTX 6000 Ada Generation": CudaContext(
        nbytes=426 * MIB, measured=True, source="torch 2.10.0+cu130: unslothai/unsloth-zoo pull request 1053"
    ),
}
_USUAL = CudaContext(
    nbytes=400 * MIB, measured=False, source="about 400 MB with CUDA >= 11.7: ptrblck, pytorch issue 109888"
)


def cuda_context(gpu_name: str) -> CudaContext:
    """Return the CUDA context of one process on a GPU, by the name that the driver reports."""
    return _MEASURED.get(gpu_name, _USUAL)
