"""Optimizers whose `step()` is compiled, for one device or for any: what it allocates is the compiler's choice.

`torch.compile` fuses pointwise operations into kernels without temporaries, and gives buffers to what is left
(reductions, matrix products), by its version and the device. A recorded step shows them.
"""

from __future__ import annotations

from memsim.optimizers.step import register_unmodelled_step

_TORCHAO = (
    "torchao compiles the update of each parameter (torch.compile of single_param_adam, torchao/optim/adam.py:142 "
    "@0.18.0), and TorchInductor decides which of its float32 copies, block maxima and codes are made"
)

for _name in ("Adam8bit", "AdamW8bit", "Adam4bit", "AdamW4bit", "AdamFp8", "AdamWFp8", "adam._AdamW"):
    register_unmodelled_step(f"torchao.optim.{_name}", _TORCHAO)
register_unmodelled_step(
    "kron_torch.Kron",
    "its preconditioners are updated and applied by compiled functions (kron_torch/kron.py @0.3.3), and "
    "a draw decides at which steps they are balanced",
)
register_unmodelled_step("torch_xla.amp.syncfree.AdamW", "XLA compiles the whole step and decides what is made")
register_unmodelled_step(
    "torch_npu.optim.NpuFusedAdamW", "it moves weights, gradients and moments into tensors that the NPU aligns"
)
