"""Recorders on imaginary GPUs, and small models for them."""

from dataclasses import replace

import pytest
from gpu_fixture import installation  # noqa: F401

from memsim.config import OptimizerConfig, TrainingConfig
from memsim.gpus import find_gpu
from memsim.record.recorder import Recorder, RecordJob

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 8000,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 4000,
    "max_position_embeddings": 128,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 1000,
}


def job(config=LLAMA, *, kind="program", optimizer="adamw_torch", **training):
    """Return a job with a float32 model, batch 2 and 64 tokens unless told otherwise."""
    options = {"dtype": "float32", "batch_size": 2, "seq_len": 64, **training}
    return RecordJob(
        config=config, kind=kind, training=TrainingConfig(optimizer=OptimizerConfig(name=optimizer), **options)
    )


@pytest.fixture(scope="session")
def recorder(installation):  # noqa: F811
    """One worker on an A100 for all tests of a session."""
    with Recorder(find_gpu("A100")) as running:
        yield running


def small_gpu(memory_bytes):
    """Return an A100 with less memory."""
    return replace(find_gpu("A100"), memory_bytes=memory_bytes)
