"""torchao's low-bit optimizers against their rules, every entry of every real state."""

from __future__ import annotations

import optimizer_oracle as oracle
import pytest

from memsim.errors import UsageError
from memsim.optimizers import derive_state, resolve_optimizer

pytest.importorskip("torchao", reason="torchao is not installed")

import torch
import torchao.optim

LOW_BIT = ("Adam8bit", "AdamW8bit", "Adam4bit", "AdamW4bit", "AdamFp8", "AdamWFp8")
SHAPES = oracle.SHAPES | {"multiple_of_128_only": (33, 128), "multiple_of_256": (64, 72)}
"""4,224 = 33 x 128 elements divide into blocks of 128 and not of 256; 4,608 = 18 x 256 into both."""


@pytest.fixture
def eager(monkeypatch):
    """Run the update uncompiled: compiling changes what `step()` holds on the way, not what it keeps."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def _real(name, dtype, **args):
    parameters = oracle.make_parameters(SHAPES, dtype)
    optimizer = getattr(torchao.optim, name)(parameters.values(), **args)
    return parameters, optimizer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LOW_BIT)
def test_the_rule_is_the_real_state(name, dtype, eager):
    parameters, optimizer = _real(name, dtype)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"torchao.optim.{name}", {}, optimizer, parameters)


@pytest.mark.parametrize("block_size", [128, 256, 2048])
@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_the_rule_follows_the_block_size(name, block_size, eager):
    parameters, optimizer = _real(name, "bfloat16", block_size=block_size, bf16_stochastic_round=True)
    oracle.step_twice(optimizer, parameters)
    args = {"block_size": block_size, "bf16_stochastic_round": True}
    oracle.assert_state_equals(f"torchao.optim.{name}", args, optimizer, parameters)


@pytest.mark.parametrize("name", ["Adam8bit", "AdamW4bit", "AdamWFp8"])
def test_amsgrad_adds_a_third_moment(name, monkeypatch):
    """The update itself does not support amsgrad on these tensors, so only the creation of the state runs."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *_: None)
    parameters, optimizer = _real(name, "float32", amsgrad=True)
    oracle.step_twice(optimizer, parameters)
    oracle.assert_state_equals(f"torchao.optim.{name}", {"amsgrad": True}, optimizer, parameters)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stochastic_rounding_adamw_keeps_two_moments_in_the_weights_dtype(dtype, eager):
    parameters = oracle.make_parameters(SHAPES, dtype)
    optimizer = torchao.optim._AdamW(parameters.values(), bf16_stochastic_round=dtype == "bfloat16")
    oracle.step_twice(optimizer, parameters)
    args = {"bf16_stochastic_round": dtype == "bfloat16"}
    oracle.assert_state_equals("torchao.optim.adam._AdamW", args, optimizer, parameters)


class _Stream:
    """A CUDA stream of a machine without CUDA: everything is done at once."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def wait_stream(self, _):
        return None

    def synchronize(self):
        return None

    def record_event(self):
        return self


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpu_offload_keeps_large_parameters_gradients_and_state_on_the_host(dtype, monkeypatch):
    from torchao.optim import cpu_offload

    monkeypatch.setattr(cpu_offload, "get_available_devices", lambda: ["cpu", "cuda"])
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda t, pin_memory=False, **k: empty_like(t, **k))

    parameters = oracle.make_parameters(dtype=dtype)
    optimizer = torchao.optim.CPUOffloadOptimizer(list(parameters.values()))
    sum((p.float() ** 2).sum() for p in parameters.values()).backward()
    optimizer.step()

    real = _state_of_offload(optimizer, parameters)
    predicted = oracle.predicted_state("torchao.optim.CPUOffloadOptimizer", {}, parameters)
    oracle.assert_same(real, predicted)
    large = [p for p in parameters.values() if p.numel() >= 4096]
    small = [p for p in parameters.values() if p.numel() < 4096]
    assert predicted.device_bytes == sum(2 * p.nbytes + 4 for p in small)
    assert predicted.host_bytes == sum(4 * p.nbytes + 4 for p in large)


def _state_of_offload(optimizer, parameters):
    """Return the attributes that hold the state, by parameter and under their own names."""
    state = {}
    for p in parameters.values():
        if p in optimizer.param_d2h_map:
            host = optimizer.param_d2h_map[p]
            inner = optimizer.optim_dict[p].state[host]
            state[p] = {"param_d2h_map": host, "param_d2h_map.grad": host.grad}
            state[p] |= {f"optim_dict.{name}": value for name, value in inner.items()}
        else:
            state[p] = {f"d_opt.{name}": value for name, value in optimizer.d_opt.state[p].items()}
    return oracle.real_state(state, parameters)


def test_a_block_of_no_elements_is_refused():
    parameters = oracle.specs(oracle.make_parameters({"w": (64, 64)}))
    with pytest.raises(UsageError, match="block_size=0"):
        derive_state(resolve_optimizer("torchao.optim.AdamW8bit", {"block_size": 0}), parameters)
