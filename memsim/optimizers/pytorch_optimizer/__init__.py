"""State of the optimizers of the `pytorch_optimizer` package (kozistr), version 4.1.0."""

from memsim.optimizers.pytorch_optimizer import irregular, matrices, reduced, uniform  # noqa: F401  (each registers its rules)
