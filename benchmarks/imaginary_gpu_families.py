"""Trains 40 model families for two steps on imaginary GPUs of six compute capabilities, and prints what failed.

    python benchmarks/imaginary_gpu_families.py                                  all 720 runs
    python benchmarks/imaginary_gpu_families.py --capability 9.0 --dtype bf16    some of them

The models have the sizes of the catalog's, or of their configuration class's defaults, cut to two layers. For each
capability one process runs them all: importing takes seconds, a step milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

CAPABILITIES = {
    "8.0": "A100",
    "8.6": "RTX 3090",
    "8.9": "RTX 4090",
    "9.0": "H100",
    "10.0": "B200",
    "12.0": "RTX 5090",
}
"""A GPU for each compute capability. Its memory is set to 1 TiB: kernels do not depend on it, and all models fit."""
DTYPES = ("fp32", "bf16", "bf16-autocast")
MEMORY_BYTES = 2**40
NUM_LAYERS = 2
BATCH_SIZE = 2
SEQ_LEN = 128
IMAGE_TOKENS = 64
"""Image placeholders in the text of a multimodal model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model and what it is fed with."""

    name: str
    """`model_type` of the configuration."""
    model: str = ""
    """Id in the catalog whose sizes are used; empty: the defaults of the configuration class."""
    task: str
    """Key of `memsim.config.TASKS`."""
    inputs: str
    """How a batch looks: a key of `_BATCHES`."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Configuration keys with which two layers are still a typical part of the model."""


def _text(name: str, model: str, **changes: Any) -> Family:
    return Family(name=name, model=model, task="causal-lm", inputs="tokens", changes=changes)


_EVERY_LAYER = {"layerdrop": 0.0}
"""By default speech models leave out a tenth of the layers, at random: no two steps would be alike."""

FAMILIES = (
    _text("gpt2", "openai-community/gpt2"),
    _text("gpt_neo", "EleutherAI/gpt-neo-1.3B", attention_types=[[["global", "local"], 1]]),
    _text("gpt_neox", "EleutherAI/pythia-1b-deduped"),
    _text("gptj", "EleutherAI/gpt-j-6b"),
    _text("gpt_bigcode", "bigcode/starcoderbase-3b"),
    _text("opt", "facebook/opt-6.7b"),
    _text("bloom", "bigscience/bloom-3b"),
    _text("falcon", "tiiuae/falcon-7b-instruct"),
    _text("mpt", "mosaicml/mpt-7b"),
    _text("llama", "meta-llama/Llama-3.1-8B"),
    _text("mistral", "mistralai/Mistral-7B-v0.1"),
    _text("qwen2", "Qwen/Qwen2.5-7B"),
    _text("qwen3", "Qwen/Qwen3-4B-Instruct-2507"),
    _text("gemma2", "google/gemma-2-9b-it"),
    _text("phi3", "microsoft/Phi-4-mini-instruct"),
    _text("mixtral", "mistralai/Mixtral-8x22B-v0.1"),
    _text("qwen3_moe", "Qwen/Qwen3-30B-A3B-Thinking-2507"),
    _text("deepseek_v3", "deepseek-ai/DeepSeek-R1", first_k_dense_replace=1, mlp_layer_types=["dense", "sparse"]),
    _text("gpt_oss", "openai/gpt-oss-120b"),
    _text("mamba", "state-spaces/mamba-790m-hf"),
    _text("rwkv", "RWKV/rwkv-4-3b-pile"),
    Family(name="bert", model="google-bert/bert-base-uncased", task="masked-lm", inputs="tokens"),
    Family(
        name="distilbert", model="distilbert/distilbert-base-uncased", task="sequence-classification", inputs="pairs"
    ),
    Family(name="roberta", model="FacebookAI/roberta-large", task="token-classification", inputs="tokens"),
    Family(name="deberta-v2", model="microsoft/mdeberta-v3-base", task="sequence-classification", inputs="pairs"),
    Family(name="modernbert", model="answerdotai/ModernBERT-large", task="masked-lm", inputs="tokens"),
    Family(
        name="t5", model="google-t5/t5-base", task="seq2seq-lm", inputs="tokens", changes={"decoder_start_token_id": 0}
    ),
    Family(name="bart", model="facebook/bart-large", task="seq2seq-lm", inputs="tokens"),
    Family(name="vit", model="google/vit-large-patch16-224", task="image-classification", inputs="images"),
    Family(name="swin", model="microsoft/swin-base-patch4-window7-224", task="image-classification", inputs="images"),
    Family(name="convnext", model="facebook/convnext-base-224", task="image-classification", inputs="images"),
    Family(name="resnet", model="microsoft/resnet-50", task="image-classification", inputs="images"),
    Family(name="dinov2", model="facebook/dinov2-large", task="image-classification", inputs="images"),
    Family(name="segformer", task="semantic-segmentation", inputs="segments"),
    Family(name="whisper", model="openai/whisper-medium.en", task="speech-seq2seq", inputs="spectrogram"),
    Family(name="wav2vec2", model="facebook/wav2vec2-large-xlsr-53", task="ctc", inputs="speech", changes=_EVERY_LAYER),
    Family(
        name="hubert",
        model="facebook/hubert-base-ls960",
        task="audio-classification",
        inputs="sound",
        changes=_EVERY_LAYER,
    ),
    Family(
        name="clip", model="openai/clip-vit-large-patch14", task="zero-shot-image-classification", inputs="captions"
    ),
    Family(name="llava", model="llava-hf/llava-1.5-7b-hf", task="image-text-to-text", inputs="image-text"),
    Family(name="qwen2_vl", model="Qwen/Qwen2-VL-7B-Instruct", task="image-text-to-text", inputs="patches-text"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Two training steps of one family."""

    capability: str
    dtype: str
    family: str
    error: str = ""
    """Empty: it ran."""
    peak_bytes: tuple[int, ...] = ()
    """The highest allocated bytes of each step."""
    parameter_bytes: int = 0
    seconds: float = 0.0


def run(capability: str, pairs: Iterable[tuple[str, str]], num_steps: int = 2) -> tuple[list[Run], float]:
    """Train pairs of family and dtype on one imaginary GPU, in a process; return the runs and its seconds."""
    from memsim.gpus import find_gpu
    from memsim.imaginary_gpu import child_environment

    gpu = replace(find_gpu(CAPABILITIES[capability]), memory_bytes=MEMORY_BYTES)
    command = [sys.executable, __file__, "--child", json.dumps([capability, [*pairs], num_steps])]
    start = time.monotonic()
    process = subprocess.run(
        command, env={**child_environment(gpu), "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=False
    )
    lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    runs = [Run(**{**line, "peak_bytes": tuple(line["peak_bytes"])}) for line in lines]
    if process.returncode != 0:
        message = f"the process ended with {process.returncode} after {len(runs)} runs"
        runs.append(Run(capability=capability, dtype="", family="", error=message))
    return runs, time.monotonic() - start


def _cut_config(family: Family) -> Any:
    from transformers import CONFIG_MAPPING

    from memsim import catalog

    known = dict(catalog.find(family.model).config) if family.model else {}
    config = CONFIG_MAPPING[family.name].from_dict(known)
    for part in _parts(config):
        _cut(part)
    for key, value in family.changes.items():
        setattr(config, key, value)
    return config


def _parts(config: Any) -> Iterator[Any]:
    from transformers import PretrainedConfig

    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from _parts(value)


_DEPTHS = ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth")


def _cut(config: Any) -> None:
    """Cut a configuration to two layers; hierarchical models keep their stages, each of at most two."""
    for key in _DEPTHS:
        if isinstance(getattr(config, key, None), int) and hasattr(config, "depths") is False:
            setattr(config, key, NUM_LAYERS)
    if isinstance(getattr(config, "depths", None), (list, tuple)):
        config.depths = [min(depth, NUM_LAYERS) for depth in config.depths]
    for key in ("layer_types", "mlp_layer_types"):
        if isinstance(vars(config).get(key), list):
            setattr(config, key, getattr(config, key)[:NUM_LAYERS])


def _tokens(_config: Any) -> dict[str, Any]:
    import torch

    ids = torch.ones(BATCH_SIZE, SEQ_LEN, dtype=torch.long, device="cuda")
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.zeros_like(ids)}


def _zeros(*shape: int) -> Any:
    import torch

    return torch.zeros(*shape, device="cuda")


def _labels(*shape: int) -> Any:
    return _zeros(BATCH_SIZE, *shape).long()


def _pairs(config: Any) -> dict[str, Any]:
    return {**_tokens(config), "labels": _labels()}


def _pixels(config: Any) -> Any:
    size = getattr(config, "image_size", 224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return _zeros(BATCH_SIZE, config.num_channels, height, width)


def _images(config: Any) -> dict[str, Any]:
    return {"pixel_values": _pixels(config), "labels": _labels()}


def _segments(_config: Any) -> dict[str, Any]:
    return {"pixel_values": _zeros(BATCH_SIZE, 3, 512, 512), "labels": _labels(512, 512)}


def _spectrogram(config: Any) -> dict[str, Any]:
    return {"input_features": _zeros(BATCH_SIZE, config.num_mel_bins, 3000), "labels": _labels(SEQ_LEN)}


def _sound(_config: Any) -> dict[str, Any]:
    return {"input_values": _zeros(BATCH_SIZE, 32000), "labels": _labels()}


def _speech(config: Any) -> dict[str, Any]:
    return {**_sound(config), "labels": _labels(20) + 1}


def _captions(config: Any) -> dict[str, Any]:
    import torch

    ids = torch.ones(BATCH_SIZE, 77, dtype=torch.long, device="cuda")
    pixels = _pixels(config.vision_config)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels, "return_loss": True}


def _with_placeholders(config: Any, num_tokens: int) -> dict[str, Any]:
    import torch

    ids = torch.ones(BATCH_SIZE, SEQ_LEN + num_tokens, dtype=torch.long)
    ids[:, :num_tokens] = config.image_token_id
    ids = ids.cuda()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.zeros_like(ids)}


def _image_text(config: Any) -> dict[str, Any]:
    vision = config.vision_config
    num_tokens = (vision.image_size // vision.patch_size) ** 2
    return {**_with_placeholders(config, num_tokens), "pixel_values": _pixels(vision)}


def _patches_text(config: Any) -> dict[str, Any]:
    import torch

    vision = config.vision_config
    num_patches = IMAGE_TOKENS * vision.spatial_merge_size**2
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    side = int(num_patches**0.5)
    batch = _with_placeholders(config, IMAGE_TOKENS)
    return {
        **batch,
        "pixel_values": torch.zeros(BATCH_SIZE * num_patches, width, device="cuda"),
        "image_grid_thw": torch.tensor([[1, side, side]] * BATCH_SIZE, device="cuda"),
        "mm_token_type_ids": torch.zeros_like(batch["input_ids"]),
    }


_BATCHES = {
    "tokens": _tokens,
    "pairs": _pairs,
    "images": _images,
    "segments": _segments,
    "spectrogram": _spectrogram,
    "sound": _sound,
    "speech": _speech,
    "captions": _captions,
    "image-text": _image_text,
    "patches-text": _patches_text,
}


def _train(family: Family, dtype: str, num_steps: int) -> tuple[int, list[int]]:
    """Return the bytes of the parameters and the peak of each step."""
    import torch
    import transformers

    from memsim.config import TASKS

    config = _cut_config(family)
    weights = torch.bfloat16 if dtype == "bf16" else torch.float32
    with torch.device("cuda"):
        model = getattr(transformers, TASKS[family.task]).from_config(config, dtype=weights)
    model.to("cuda").train()  # torch.Tensor(...) in a constructor does not follow the context
    parameter_bytes = sum(p.nbytes for p in model.parameters())
    batch = _BATCHES[family.inputs](config)
    batch = {
        name: value.to(weights) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }
    optimizer = torch.optim.AdamW(model.parameters())
    peaks = []
    for _ in range(num_steps):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == "bf16-autocast"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    return parameter_bytes, peaks


def _child(capability: str, pairs: Iterable[tuple[str, str]], num_steps: int) -> None:
    """Train in this process, on the GPU it sees, and print each run as a line of JSON."""
    import gc
    import warnings

    import torch

    from memsim.record.watch.values import Values

    warnings.filterwarnings("ignore")
    values = Values(torch)
    known = {family.name: family for family in FAMILIES}
    for name, dtype in pairs:
        start, error, parameter_bytes = time.monotonic(), "", 0
        peaks: list[int] = []
        try:
            parameter_bytes, peaks = _train(known[name], dtype, num_steps)
        except Exception as raised:
            frame = traceback.extract_tb(raised.__traceback__)[-1]
            error = f"{type(raised).__name__}: {raised} ({frame.filename}:{frame.lineno})"
        made = Run(
            capability=capability,
            dtype=dtype,
            family=name,
            error=error,
            peak_bytes=tuple(peaks),
            parameter_bytes=parameter_bytes,
            seconds=round(time.monotonic() - start, 3),
        )
        print(json.dumps(asdict(made)), flush=True)
        gc.collect()
        gc.freeze()  # what is left are modules: looking through them each time took a third of all the seconds
        torch.cuda.empty_cache()
    del values


def _table(runs: Sequence[Run]) -> str:
    """Return a line per family: its peak in GiB by compute capability and dtype, or FAILED."""
    columns = [(capability, dtype) for capability in CAPABILITIES for dtype in DTYPES]
    cells: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for one in runs:
        peak = f"{one.peak_bytes[-1] / 2**30:.2f}" if one.peak_bytes else "FAILED"
        cells[one.family][one.capability, one.dtype] = peak
    shown = [column for column in columns if any(column in row for row in cells.values())]
    lines = [" | ".join(["family", *(f"{capability} {dtype}" for capability, dtype in shown)])]
    lines += [" | ".join([family, *(row.get(column, "") for column in shown)]) for family, row in cells.items()]
    return "\n".join(lines)


def main() -> int:
    """Run, print the table and every error; return 1 if there was one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--capability", action="append", choices=CAPABILITIES)
    parser.add_argument("--dtype", action="append", choices=DTYPES)
    parser.add_argument("--family", action="append", choices=[family.name for family in FAMILIES])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(*json.loads(options.child))
        return 0
    names = options.family or [family.name for family in FAMILIES]
    pairs = [(name, dtype) for name in names for dtype in options.dtype or DTYPES]
    runs: list[Run] = []
    for capability in options.capability or CAPABILITIES:
        made, seconds = run(capability, pairs, options.steps)
        runs += made
        print(f"{capability}: {len(made)} runs in {seconds:.1f} s", file=sys.stderr)
    failed = [one for one in runs if one.error]
    print(_table(runs))
    print(f"\n{len(runs) - len(failed)} of {len(runs)} runs trained {options.steps} steps.")
    for one in failed:
        print(f"FAILED {one.capability} {one.dtype} {one.family}: {one.error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
