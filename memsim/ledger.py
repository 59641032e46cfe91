"""The words for what holds device memory and when."""

from __future__ import annotations

from enum import Enum


class Category(str, Enum):
    """What a tensor is for; the words of PyTorch's memory profiler, completed."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    INPUT = "input"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"
    CUDA_CONTEXT = "cuda_context"
    OTHER_NON_PYTORCH = "other_non_pytorch"


class Phase(str, Enum):
    """Part of a training step, or what a training script does between its steps."""

    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer_step"
    ZERO_GRAD = "zero_grad"
    EVALUATION = "evaluation"
    GENERATE = "generate"
    SAVE = "save"
