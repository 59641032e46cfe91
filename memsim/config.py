"""`TrainingConfig`: every choice of the user that decides bytes, resolved and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from memsim.errors import UnknownNameError, UsageError
from memsim.tensors import ITEMSIZES
from memsim.typed import check_fields

WEIGHT_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
"""What a user may ask for."""
RESOLVED_DTYPES = ("auto", *(dtype for dtype in ITEMSIZES if not dtype.startswith("python:")))
"""What the weights of a model that was resolved may be of."""
MAX_LABELS = 10**6
"""Labels of a classification head: thirty times as many as any published model has."""
MAX_BATCH = 2**20
"""Sequences of a micro-batch: a thousand times as many as any GPU holds."""
MAX_TOKENS = 2**24
"""Tokens of a sequence: ten times the longest that any model was trained with."""
AutocastDtype = Literal["none", "bfloat16", "float16"]
AttnImplementation = Literal["eager", "sdpa", "flash_attention_2"]
OptimizerImpl = Literal["foreach", "fused", "for-loop"]
Loop = Literal["plain", "accelerate", "trainer"]

DEFAULT_OPTIMIZER = "adamw_torch_fused"
"""What `transformers.TrainingArguments.optim` is with torch >= 2.8 (transformers 5.24, training_args.py:806)."""

TASKS: dict[str, str] = {
    "base": "AutoModel",
    "pretraining": "AutoModelForPreTraining",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
    "next-sentence-prediction": "AutoModelForNextSentencePrediction",
    "image-text-to-text": "AutoModelForImageTextToText",
    "image-classification": "AutoModelForImageClassification",
    "zero-shot-image-classification": "AutoModelForZeroShotImageClassification",
    "masked-image-modeling": "AutoModelForMaskedImageModeling",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "ctc": "AutoModelForCTC",
    "audio-classification": "AutoModelForAudioClassification",
    "audio-frame-classification": "AutoModelForAudioFrameClassification",
    "audio-xvector": "AutoModelForAudioXVector",
}
"""Task names of `--task` and the `transformers` auto class that builds each."""


LABEL_TASKS = (
    "sequence-classification",
    "token-classification",
    "question-answering",
    "image-classification",
    "semantic-segmentation",
    "audio-classification",
    "audio-frame-classification",
    "audio-xvector",
)
"""Tasks whose classes read `num_labels` (transformers 5.24); that of multiple-choice gives each choice one number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Parameters that another optimizer, or the same with other arguments, trains."""

    patterns: tuple[str, ...]
    """Full names, module names or wildcards, as in `ParameterTable.freeze`."""
    optimizer: str | None = None
    """Any optimizer name, `none` for no optimizer at all; `None` is the `OptimizerConfig`'s own."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments; laid over the `OptimizerConfig`'s where the optimizer is the same."""
    holds_frozen: bool = False
    """Whether the optimizer was given parameters without a gradient too: some make state for them all the same."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, how it is built."""

    name: str = DEFAULT_OPTIMIZER
    """A Hugging Face `optim=` name, a class path (`torch.optim.AdamW`) or a short name (`adamw`)."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the real class."""
    impl: OptimizerImpl | None = None
    """Form of `step()`; `None` is what PyTorch chooses on an accelerator (foreach where the class has it)."""
    groups: tuple[ParameterGroup, ...] = ()
    """Parameters that are trained differently; the first group that covers a name has it."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """One training step on one device."""

    task: str | None = None
    """A key of `TASKS`; `None` is the class that the model's own config names."""
    num_labels: int | None = None
    """Labels of a classification head; `None` is the config's own (transformers' default is 2)."""
    dtype: str = "auto"
    """Dtype of the weights; `auto` is the checkpoint's own, and float32 (with an assumption) where it is not known."""
    autocast: AutocastDtype = "none"
    """Dtype of `torch.autocast`; weights, gradients and state stay in `dtype`."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """The optimizer."""
    batch_size: int = 1
    """Sequences per device and micro-batch."""
    seq_len: int | None = None
    """Tokens per sequence; `None` where the task has none."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per optimizer step."""
    activation_checkpointing: bool = False
    """Whether the model recomputes activations in backward."""
    attn_implementation: AttnImplementation | None = None
    """Attention code path; `None` is the model's own default."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameters that are not trained; see `ParameterTable.freeze`."""
    loop: Loop = "plain"
    """Who runs the step: a plain PyTorch loop, Accelerate, or the Hugging Face `Trainer`."""
    max_grad_norm: float | None = None
    """Norm that gradients are clipped to before the optimizer's step; `None`: no clipping (the `Trainer`: 1.0)."""
    zero_grad_set_to_none: bool = True
    """Whether gradients are freed after each step, as is PyTorch's default; `False` keeps and zeroes them."""
    gpu: str | None = None
    """GPU that runs it: a name or a memory size; `None`: kernels are those of an A100, and memory has no end."""
    alloc_conf: str = ""
    """Settings of PyTorch's caching allocator, as in `PYTORCH_ALLOC_CONF`."""
    empty_cache_steps: int | None = None
    """`torch_empty_cache_steps` of the `Trainer`: cached memory is given back every so many steps, before backward."""

    def __post_init__(self) -> None:
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if isinstance(value, str) and value not in allowed:
                raise UnknownNameError(name, value, allowed, f"Allowed: {', '.join(allowed)}.")
        check_fields(self)
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                limit = f"at least 1, not {value}" if value < 1 else f"at most {most:,}, not {value:,}"
                raise UsageError(f"{name} must be {limit}.")
        if self.max_grad_norm is not None and not 0 <= self.max_grad_norm < float("inf"):
            raise UsageError(f"max_grad_norm must be a number of at least 0, not {self.max_grad_norm:g}.")
        if self.gpu is not None and not self.gpu.strip():
            raise UsageError("gpu is empty: give a name ('memsim gpus' lists them) or a memory size such as 24GiB.")


_MOST = {
    "batch_size": MAX_BATCH,
    "seq_len": MAX_TOKENS,
    "gradient_accumulation_steps": MAX_BATCH,
    "num_labels": MAX_LABELS,
    "empty_cache_steps": MAX_BATCH,
}
_WORDS: dict[str, tuple[str, ...]] = {
    "task": tuple(TASKS),
    "dtype": RESOLVED_DTYPES,
    "autocast": get_args(AutocastDtype),
    "attn_implementation": get_args(AttnImplementation),
    "loop": get_args(Loop),
}
