"""`compute_optimizer_size` of live optimizers equals the prediction, on DistilBERT at its real size."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import bitsandbytes as bnb
import optimizer_oracle as oracle
import pytest
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification
from transformers.optimization import Adafactor

import memsim
from memsim.errors import MemsimError

ADAFACTOR = {"lr": 5e-5, "scale_parameter": False, "relative_step": False}


@pytest.fixture(scope="module")
def distilbert() -> torch.nn.Module:
    """distilbert-base-cased as a sequence classifier, with the gradients of one real backward pass."""
    torch.manual_seed(0)
    model = DistilBertForSequenceClassification(DistilBertConfig(vocab_size=28996))
    tokens = torch.randint(0, 28996, (2, 16))
    model(input_ids=tokens, labels=torch.tensor([0, 1])).loss.backward()
    return model


def assert_live_size(model: torch.nn.Module, optimizer: torch.optim.Optimizer, name: str, **args: Any) -> Any:
    optimizer.step()
    parameters = dict(model.named_parameters())
    classes = {
        f"{path}.{key}": type(module).__name__
        for path, module in model.named_modules()
        for key, _ in module.named_parameters(recurse=False)
    }
    oracle.assert_state_equals(name, args, optimizer, parameters, classes)
    predicted = oracle.predicted_state(name, args, parameters, classes)
    live = memsim.compute_optimizer_size(optimizer.state.values())
    assert live == (predicted.total_bytes, predicted.num_elements)
    assert live == memsim.compute_optimizer_size(optimizer.state)
    return live


def test_adamw_of_distilbert_is_131566188_elements_and_526264752_bytes(distilbert):
    assert sum(p.numel() for p in distilbert.parameters()) == 65_783_042
    assert len(list(distilbert.parameters())) == 104
    live = assert_live_size(distilbert, torch.optim.AdamW(distilbert.parameters(), lr=5e-5), "torch.optim.AdamW")
    # Two moments a parameter and 104 step scalars of float32.
    assert live.num_elements == 2 * 65_783_042 + 104 == 131_566_188
    assert live.num_bytes == 4 * 131_566_188 == 526_264_752


def test_adafactor_of_distilbert_is_178712_elements(distilbert):
    path = "transformers.optimization.Adafactor"
    live = assert_live_size(distilbert, Adafactor(distilbert.parameters(), **ADAFACTOR), path, **ADAFACTOR)
    # 104 Python step counters have no storage; training courses print 178,712 elements for this model.
    assert live.num_elements == 178_712
    assert live.num_bytes == 4 * (178_712 - 104)


@pytest.mark.parametrize("embeddings_in_32bit", [False, True])
def test_adamw8bit_of_distilbert_with_and_without_the_embedding_override(distilbert, embeddings_in_32bit):
    optimizer = bnb.optim.AdamW8bit(distilbert.parameters(), lr=5e-5)
    if embeddings_in_32bit:
        manager = bnb.optim.GlobalOptimManager.get_instance()
        for module in distilbert.modules():
            if isinstance(module, torch.nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    name = "bitsandbytes.optim.AdamW8bit"
    live = assert_live_size(distilbert, optimizer, name, embeddings_in_32bit=embeddings_in_32bit)
    # A row of 768 elements is three blocks: 2 x 768 codes and 2 x 3 absmax values, or 2 x 768 float32 values.
    saved_by_8_bits = (28_996 + 512) * (2 * 768 * 4 - (2 * 768 + 2 * 3 * 4))
    assert live.num_bytes == 269_269_008 - (0 if embeddings_in_32bit else saved_by_8_bits)


class Projector:
    """Like GaLore's: settings and a tensor."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.rank = 4
        self.kind = "std"
        self.matrix = matrix
        self.itself = self


@dataclass(slots=True)
class Slotted:
    codes: torch.Tensor
    bits: int


class TwoTensors(torch.Tensor):
    """A subclass made of two plain tensors, as quantised states are."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


@pytest.mark.parametrize(
    ("state", "num_bytes", "num_elements"),
    [
        ({"a": torch.zeros(3, 5)}, 60, 15),
        ({"step": 3, "rate": 0.5, "on": True}, 0, 3),
        ({"comp": None, "kind": "std"}, 0, 0),
        ({"nested": {"a": torch.zeros(2), "b": [torch.zeros(3), None, 7]}}, 20, 6),
        ({"projector": Projector(torch.zeros(4, 4))}, 64, 16),
        ({"slotted": Slotted(torch.zeros(6, dtype=torch.uint8), 8)}, 6, 6),
        ({"view": torch.zeros(100)[:10]}, 400, 10),
        ({"quantised": TwoTensors(torch.zeros(8, dtype=torch.uint8), torch.zeros(2))}, 8 + 8, 8 + 2),
        ({"meta": torch.zeros(5, device="meta"), "other": torch.zeros(7, device="meta")}, 48, 12),
        ({"empty": torch.zeros(0)}, 0, 0),
        ({}, 0, 0),
    ],
    ids=lambda value: ",".join(value) or "nothing" if isinstance(value, dict) else "",
)
def test_every_kind_of_entry_is_seen(state, num_bytes, num_elements):
    assert memsim.compute_optimizer_size([state]) == (num_bytes, num_elements)


def test_a_shared_storage_counts_once_in_bytes_and_each_time_in_elements():
    table = torch.zeros(256)
    size = memsim.compute_optimizer_size([{"qmap1": table}, {"qmap1": table}, {"qmap2": table[:16]}])
    assert size.num_bytes == 1024
    assert size.num_elements == 256 + 256 + 16


@pytest.mark.parametrize(
    ("value", "kind"),
    [(torch.Generator(), "Generator"), (lambda: None, "function"), (torch.float32, "dtype"), (iter([]), "iterator")],
)
def test_an_object_that_cannot_be_looked_into_is_named(value, kind):
    with pytest.raises(MemsimError, match=rf"state\[0\]\['odd'\].*{kind}"):
        memsim.compute_optimizer_size([{"odd": value}])


def test_a_sparse_tensor_is_refused_by_name():
    with pytest.raises(MemsimError, match=r"state\[0\]\['sum'\].*sparse"):
        memsim.compute_optimizer_size([{"sum": torch.zeros(3, 3).to_sparse()}])


def test_it_needs_no_torch():
    code = "import sys, memsim; print(memsim.compute_optimizer_size([{'step': 1}]), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "OptimizerSize(num_bytes=0, num_elements=1) False"
