"""Single layers as others measured them: what each row's script built, and the function whose memory it took.

Liger's benchmarks compare a fused kernel with plain torch or transformers; here are the plain sides, each written anew
from linkedin/Liger-Kernel, benchmark/scripts/benchmark_<op>.py at the row's version. What only lay beside the measured
layer (the weights of the fused twin) is kept as well. B batch, T sequence, H hidden, V vocabulary, E experts,
K experts of a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from single_layer_losses import CUDA, LOSSES, Program, Shapes, randn


def _embedding(shapes: Shapes, dtype: Any) -> Program:
    import torch

    vocab, hidden = shapes["V"], shapes["D"]
    table = torch.nn.Embedding(vocab, hidden, device=CUDA, dtype=dtype)
    beside = torch.nn.Embedding(vocab, hidden, device=CUDA, dtype=dtype)
    ids = torch.randint(0, vocab, (shapes["B"], shapes["T"]), device=CUDA)

    def full(_beside: Any = beside) -> None:
        output = table(ids)
        output.backward(torch.randn_like(output))

    return full


def _in_mode(forward: Callable[[], Any], mode: str) -> Program:
    """Return forward, backward over one kept graph, or both, as `run_memory_benchmark` of the scripts does."""
    import torch

    if mode == "forward":
        return forward
    if mode == "backward":
        output = forward()
        gradient = torch.randn_like(output)
        return lambda: output.backward(gradient, retain_graph=True)

    def full() -> None:
        output = forward()
        output.backward(torch.randn_like(output), retain_graph=True)

    return full


def _gated_mlp(shapes: Shapes, dtype: Any) -> Program:
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    keys = ("hidden_size", "intermediate_size", "hidden_act")
    config = LlamaConfig(**{key: shapes[key] for key in keys})
    tokens = randn(shapes["bsz"], shapes["T"], shapes["hidden_size"], dtype=dtype, grad=True)
    with torch.device(CUDA):
        layer = LlamaMLP(config).to(dtype)
    return _in_mode(lambda: layer(tokens), shapes["mode"])


def _with_gradient(layer: Callable[[Any], Any], rows: int, columns: int, dtype: Any, beside: object) -> Program:
    """Return forward and backward with a gradient that was made before; `beside` stays alive."""
    import torch

    tokens = randn(rows, columns, dtype=dtype)
    gradient = torch.randn_like(tokens)
    tokens.requires_grad_(True)
    return lambda _beside=beside: layer(tokens).backward(gradient, retain_graph=True)  # type: ignore[misc]


def _layer_norm(shapes: Shapes, dtype: Any) -> Program:
    import torch

    layer, beside = (torch.nn.LayerNorm(shapes["N"], eps=shapes["eps"], device=CUDA) for _ in range(2))
    return _with_gradient(layer, shapes["M"], shapes["N"], dtype, beside)


def _rms_norm(shapes: Shapes, dtype: Any) -> Program:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    layer, beside = (LlamaRMSNorm(shapes["H"], eps=shapes["eps"]).to(CUDA) for _ in range(2))
    return _with_gradient(layer, shapes["M"], shapes["H"], dtype, beside)


def _megatron_rms_norm(shapes: Shapes, dtype: Any) -> Program:
    import torch

    layer = torch.nn.RMSNorm(shapes["H"], eps=1e-6, device=CUDA, dtype=dtype)
    tokens = randn(shapes["S"], shapes["B"], shapes["H"], dtype=dtype, grad=True)

    def full() -> None:
        output = layer(tokens)
        output.sum().backward()

    return full


def _rope(shapes: Shapes, dtype: Any) -> Program:
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    hidden, length = shapes.get("hidden_size", shapes.get("H")), shapes.get("seq_len", shapes.get("T"))
    head = hidden // shapes["num_q_heads"]
    q, k = (
        randn(1, length, shapes[heads], head, dtype=dtype, grad=True).transpose(1, 2)
        for heads in ("num_q_heads", "num_kv_heads")
    )
    gradients = torch.randn_like(q), torch.randn_like(k)
    # The angles were a matrix product (LlamaRotaryEmbedding.forward @transformers 4.44), which leaves a workspace.
    frequencies = torch.arange(0, head, 2, device=CUDA).float()
    positions = torch.arange(length, device=CUDA).unsqueeze(0)
    angles = (frequencies[None, :, None] @ positions[:, None, :].float()).transpose(1, 2)
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    kept = frequencies, positions

    def full(_kept: Any = kept) -> None:
        turned = apply_rotary_pos_emb(q, k, cos, sin)
        torch.autograd.grad(turned, (q, k), gradients, allow_unused=True, retain_graph=True)

    del angles
    return full


def _sparsemax(shapes: Shapes, dtype: Any) -> Program:
    import torch

    def layer(inputs: Any) -> Any:
        ordered, _ = torch.sort(inputs, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        ranks = torch.arange(1, inputs.size(-1) + 1, device=CUDA, dtype=dtype).view(1, -1)
        bound = 1 + ranks * ordered
        support = bound > sums
        count = support.sum(dim=-1, keepdim=True).clamp(min=1)
        total = (ordered * support).sum(dim=-1, keepdim=True)
        threshold = (total - 1) / count
        return torch.clamp(inputs - threshold, min=0)

    return _with_gradient(layer, shapes["B"] * shapes["T"], shapes["V"], dtype, None)


def _multi_token_attention(shapes: Shapes, dtype: Any) -> Program:
    import torch
    from torch.nn import functional

    channels, size, length = shapes["C_in"], shapes["K"], shapes["L"]
    (weight, bias), beside = (
        tuple(torch.empty(*shape, dtype=dtype, device=CUDA, requires_grad=True) for shape in kernel)
        for kernel in [((channels, channels, size, size), (channels,))] * 2
    )
    scores = randn(shapes["B"], channels, length, length, dtype=dtype)
    gradient = torch.randn_like(scores)
    scores.requires_grad_(True)

    def forward() -> Any:
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=CUDA)).view(1, 1, length, length)
        low, zero = (torch.tensor(value, device=CUDA, dtype=dtype) for value in (-1e9, 0.0))
        masked = scores.masked_fill(~mask, low)
        shares = functional.softmax(masked, dim=-1)
        mixed = functional.conv2d(shares, weight, bias, stride=1, padding=size // 2)
        return mixed.masked_fill(~mask, zero)

    return lambda _beside=beside: forward().backward(gradient, retain_graph=True)  # type: ignore[misc]


def _softmax(shapes: Shapes, dtype: Any) -> Program:
    """Return softmax over one row: the script passed N alone as the shape, so M was never used."""
    import torch

    layer = torch.nn.Softmax(dim=-1)
    inputs = torch.randn(shapes["N"], dtype=dtype, device=CUDA, requires_grad=True)

    def full() -> None:
        output = layer(inputs)
        output.backward(torch.ones_like(output), retain_graph=True)

    return full


def _neighborhood_attention(shapes: Shapes, dtype: Any) -> Program:
    import torch

    batch, length, hidden = shapes["batch_size"], shapes["seq_len"], shapes["hidden_size"]
    heads = shapes["num_heads"]
    head = hidden // heads
    projections, beside = (
        [torch.nn.Linear(hidden, hidden, device=CUDA, dtype=dtype) for _ in range(4)] for _ in range(2)
    )
    inputs = randn(batch, length, hidden, dtype=dtype)
    gradient = torch.randn_like(inputs)
    inputs.requires_grad_(True)

    def forward() -> Any:
        query, key, value = (projection(inputs) for projection in projections[:3])
        query, key, value = (one.view(batch, length, heads, head).transpose(1, 2) for one in (query, key, value))
        scores = torch.matmul(query, key.transpose(-2, -1)) * (1.0 / math.sqrt(head))
        # The script fills it in element by element, which changes no size.
        mask = torch.zeros(length, length, device=CUDA, dtype=torch.bool)
        scores = scores.masked_fill(~mask, float("-inf"))
        shares = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(shares, value)
        mixed = mixed.transpose(1, 2).contiguous().view(batch, length, hidden)
        return projections[3](mixed)

    return lambda _beside=beside: forward().backward(gradient, retain_graph=True)  # type: ignore[misc]


def _moe(shapes: Shapes, dtype: Any) -> Program:
    """Return an eager loop over experts; the CPU routes at random, as the script did on the GPU."""
    import torch
    from torch.nn import functional

    tokens, experts, hidden, width, chosen = (shapes[key] for key in ("T", "E", "H", "intermediate_dim", "K"))
    inputs = randn(tokens, hidden, dtype=dtype, grad=True)
    gate_up = randn(experts, 2 * width, hidden, dtype=dtype, grad=True) * 0.02
    down = randn(experts, hidden, width, dtype=dtype, grad=True) * 0.02
    torch.manual_seed(42)
    routed = torch.randn(tokens, experts).topk(chosen, dim=-1).indices
    loads = torch.bincount(routed.flatten(), minlength=experts).tolist()
    indices = torch.zeros(tokens, chosen, dtype=torch.int32, device=CUDA)
    weights = torch.zeros(tokens, chosen, device=CUDA, dtype=dtype).requires_grad_(True)

    def forward() -> Any:
        result = torch.zeros_like(inputs)
        with torch.no_grad():
            mask = functional.one_hot(indices.long(), num_classes=experts).permute(2, 1, 0)
            hit = torch.arange(experts, device=CUDA).view(-1, 1)
        for one in range(experts):
            torch.where(mask[one])  # finds nothing: no value is computed
            pairs = torch.zeros(loads[one], 2, dtype=torch.long, device=CUDA)
            position, token = pairs.unbind(1)
            expert = hit[one][0]
            states = inputs[token]
            gate, up = functional.linear(states, gate_up[expert]).chunk(2, dim=-1)
            states = functional.silu(gate) * up
            states = functional.linear(states, down[expert])
            states = states * weights[token, position, None]
            result.index_add_(0, token, states.to(result.dtype))
        return result

    return _in_mode(forward, shapes["mode"])


def _attention(shapes: Shapes, dtype: Any) -> Program:
    """Return attention with one head as its formula says; the graph it returns is what is measured."""
    import torch

    queries, keys, values = (
        randn(shapes["batch_size"], shapes["seq_len"], shapes["hidden_size"], dtype=dtype, grad=True) for _ in range(3)
    )
    gradient = torch.randn_like(queries)

    def softmax(scores: Any) -> Any:
        lowered = scores - torch.max(scores, dim=-1, keepdim=True)[0]
        exponents = torch.exp(lowered)
        return exponents / torch.sum(exponents, dim=-1, keepdim=True)

    def forward() -> Any:
        scores = torch.einsum("...qd,...kd->...qk", queries, keys) / math.sqrt(keys.shape[-1])
        return torch.einsum("...qk,...kd->...qd", softmax(scores), values)

    warm = forward()
    warm.backward(gradient)
    for tensor in (queries, keys, values):
        tensor.grad = None
    kept = gradient, warm.detach()
    return lambda _kept=kept: forward()  # type: ignore[misc]


def _decoder_layer(shapes: Shapes, dtype: Any) -> Program:
    """Return the first layer of a model with its weights; the graph it returns is what is measured."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from memsim import catalog

    known = {**catalog.find(shapes["model"]).config, "num_hidden_layers": 1}
    if "layer_types" in known:
        known["layer_types"] = known["layer_types"][:1]
    config = AutoConfig.for_model(**known)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(dtype)
    with torch.device(CUDA):
        model = AutoModelForCausalLM.from_config(config).eval()
    torch.set_default_dtype(torch.float32)
    batch, length = shapes["batch_size"], shapes["seq_len"]
    states = torch.rand(batch, length, config.hidden_size, requires_grad=True, dtype=dtype, device=CUDA)
    places = torch.randint(0, length, [batch, length], device=CUDA)
    embeddings = model.model.rotary_emb(states, places)
    layer = model.model.layers[0]
    return lambda: layer(hidden_states=states, attention_mask=None, position_ids=places, position_embeddings=embeddings)


PROGRAMS: Mapping[str, Callable[[Shapes, Any], Program]] = {
    **LOSSES,
    "embedding": _embedding,
    "geglu": _gated_mlp,
    "tiled_geglu": _gated_mlp,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "megatron_rms_norm": _megatron_rms_norm,
    "rope": _rope,
    "sparsemax": _sparsemax,
    "multi_token_attention": _multi_token_attention,
    "softmax": _softmax,
    "fused_neighborhood_attention": _neighborhood_attention,
    "fused_moe": _moe,
    "attention": _attention,
    "decoder_layer": _decoder_layer,
}
"""By `op` of a row."""
