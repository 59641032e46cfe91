"""The imaginary GPU: PyTorch's CUDA build on stand-in CUDA libraries that keep books and do no arithmetic.

>>> from memsim import imaginary_gpu
>>> from memsim.gpus import find_gpu
>>> environment = imaginary_gpu.child_environment(find_gpu("RTX 4090"))   # for subprocess.run(["python", ...], env=...)
"""

from memsim.imaginary_gpu.build import build
from memsim.imaginary_gpu.environment import child_environment
from memsim.imaginary_gpu.installation import Installation, find

__all__ = ["Installation", "build", "child_environment", "find"]
