"""Losses as others measured them alone, with and without the layer that makes the logits.

The plain sides of Liger's benchmarks, each written anew from linkedin/Liger-Kernel, benchmark/scripts/benchmark_<op>.py
at the row's version. B batch, T sequence, BT tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Program = Callable[[], object]
"""The function that is called ten times; it holds what was made before."""
Shapes = Mapping[str, Any]
"""The sizes and settings of a row, and its `mode`."""

CUDA = "cuda"


def randn(*shape: int, dtype: Any, grad: bool = False) -> Any:
    """Return random numbers on the device, with a gradient to come if `grad`."""
    import torch

    return torch.randn(*shape, dtype=dtype, device=CUDA, requires_grad=grad)


def _linear(num_in: int, num_out: int, dtype: Any) -> Any:
    import torch

    return torch.nn.Linear(num_in, num_out, bias=False, dtype=dtype, device=CUDA)


def _cross_entropy(shapes: Shapes, dtype: Any) -> Program:
    import torch

    tokens, vocab = shapes["B"] * shapes["T"], shapes["V"]
    logits = randn(tokens, vocab, dtype=dtype, grad=True)
    target = torch.randint(vocab, (tokens, 1), device=CUDA).squeeze(1)
    loss_of = torch.nn.CrossEntropyLoss()
    return lambda: loss_of(logits, target).backward()


def _kl_div(shapes: Shapes, dtype: Any) -> Program:
    import torch

    tokens, vocab = shapes["B"] * shapes["T"], shapes["V"]
    logs = randn(tokens, vocab, dtype=dtype, grad=True).log_softmax(dim=-1)
    target = randn(tokens, vocab, dtype=dtype).softmax(dim=-1)
    loss_of = torch.nn.KLDivLoss(reduction="batchmean")
    return lambda: loss_of(logs, target).backward(retain_graph=True)


def _jensen_shannon(log_q: Any, log_p: Any, result: Any) -> Any:
    """Return the divergence of two tables of log-probabilities, a row per token, both at beta 0.5."""
    import torch

    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
    kl = torch.nn.KLDivLoss(reduction="none", log_target=True)
    mean = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    loss = 0.5 * kl(torch.log(mean), log_p).sum(dim=-1) + (1 - 0.5) * kl(torch.log(mean), log_q).sum(dim=-1)
    loss = (loss / log_q.shape[0]).sum()
    return loss.to(result)


def _jsd(shapes: Shapes, dtype: Any) -> Program:
    tokens, vocab = shapes["B"] * shapes["T"], shapes["V"]
    logs = randn(tokens, vocab, dtype=dtype, grad=True).log_softmax(dim=-1)
    target = randn(tokens, vocab, dtype=dtype).log_softmax(dim=-1)
    return lambda: _jensen_shannon(logs, target, dtype).backward(retain_graph=True)


def _fused_linear_jsd(shapes: Shapes, dtype: Any) -> Program:
    import torch

    tokens, hidden, vocab = shapes["BT"], shapes["H"], shapes["V"]
    student, teacher = _linear(hidden, vocab, dtype), _linear(hidden, vocab, dtype)
    inputs = torch.rand(tokens, hidden, dtype=dtype, device=CUDA, requires_grad=True)
    teacher_inputs = torch.rand(tokens, hidden, dtype=dtype, device=CUDA)

    def forward() -> Any:
        student_logits, teacher_logits = student(inputs), teacher(teacher_inputs)
        student_logs = torch.log_softmax(student_logits / 1.0, dim=-1)
        teacher_logs = torch.log_softmax(teacher_logits / 1.0, dim=-1)
        return _jensen_shannon(student_logs, teacher_logs, dtype)

    def full() -> None:
        loss = forward()
        loss.backward()

    return full


def _orpo(shapes: Shapes, dtype: Any) -> Program:
    import torch
    from torch.nn import functional

    hidden, vocab = shapes["H"], shapes["V"]
    head, beside = _linear(hidden, vocab, dtype), _linear(hidden, vocab, dtype)
    inputs = randn(shapes["B"], shapes["T"], hidden, dtype=dtype, grad=True)
    target = torch.randint(vocab, (shapes["B"], shapes["T"]), device=CUDA)
    loss_of = torch.nn.CrossEntropyLoss(ignore_index=-100)

    def forward() -> Any:
        logits = head(inputs)
        half = logits.shape[0] // 2
        chosen_loss = loss_of(logits[:half].view(-1, vocab), target[:half].view(-1))
        logs = functional.log_softmax(logits, dim=-1).mean(dim=-1)
        chosen, rejected = logs[:half], logs[half:]
        odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
        return chosen_loss - (0.1 * functional.logsigmoid(odds)).mean()

    def full(_beside: Any = beside) -> None:
        loss = forward()
        loss.backward()

    return full


def _distill_jsd(shapes: Shapes, dtype: Any) -> Program:
    import torch
    from torch.nn import functional

    tokens, hidden, vocab = shapes["BT"], shapes["H"], shapes["V"]
    (student, teacher), beside = ((_linear(hidden // 2, vocab, dtype), _linear(hidden, vocab, dtype)) for _ in range(2))
    inputs = torch.rand(tokens, hidden // 2, dtype=dtype, device=CUDA)
    kept = [inputs, inputs.detach().clone().requires_grad_(True), beside]
    inputs = inputs.detach().clone().requires_grad_(True)
    teacher_inputs = torch.rand(tokens, hidden, dtype=dtype, device=CUDA)
    target = torch.randint(0, vocab, (tokens,), device=CUDA)

    def soft_loss(student_logits: Any, teacher_logits: Any) -> Any:
        student_logs = functional.log_softmax(student_logits, dim=-1)
        teacher_logs = functional.log_softmax(teacher_logits, dim=-1)
        mean_logs = (0.5 * student_logs.exp() + (1 - 0.5) * teacher_logs.exp()).log()
        student_kl = functional.kl_div(mean_logs, student_logs, reduction="batchmean", log_target=True)
        teacher_kl = functional.kl_div(mean_logs, teacher_logs, reduction="batchmean", log_target=True)
        return 0.5 * teacher_kl + (1 - 0.5) * student_kl

    def logits_and_loss() -> tuple[Any, Any, Any]:
        student_outputs = inputs @ student.weight.t()
        with torch.no_grad():
            teacher_outputs = teacher_inputs @ teacher.weight.t()
        student_logits, teacher_logits = student_outputs.float(), teacher_outputs.float()
        return student_logits, teacher_logits, functional.cross_entropy(student_logits, target)

    def forward() -> Any:
        outputs = logits_and_loss()
        student_logits, teacher_logits, hard_loss = outputs
        student_logits /= 1.0
        teacher_logits /= 1.0
        return 0.5 * hard_loss + 0.5 * soft_loss(student_logits, teacher_logits)

    def full(_kept: Any = kept) -> None:
        loss = forward()
        loss.backward()

    return full


def _grpo(shapes: Shapes, dtype: Any) -> Program:
    import torch
    from torch.nn import functional

    batch, length, hidden, vocab = (shapes[key] for key in ("B", "T", "H", "V"))
    head, reference, *beside = (_linear(hidden, vocab, dtype) for _ in range(4))
    inputs = randn(batch, length, hidden, dtype=dtype, grad=True)
    ids = torch.randint(0, vocab, (batch, length), device=CUDA)
    mask = torch.ones(batch, length, device=CUDA)
    advantages = randn(batch, dtype=dtype)
    reference_inputs = randn(batch, length, hidden, dtype=dtype)

    def forward() -> Any:
        logits = inputs @ head.weight.t()
        logs = functional.log_softmax(logits.float(), dim=-1)
        chosen = logs.gather(dim=-1, index=ids.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            reference_logits = reference_inputs @ reference.weight.t()
            reference_logs = functional.log_softmax(reference_logits.float(), dim=-1)
            reference_chosen = reference_logs.gather(dim=-1, index=ids.unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(chosen - chosen.detach())
        clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
        loss = -torch.min(ratio * advantages.unsqueeze(1), clipped * advantages.unsqueeze(1))
        distance = torch.exp(reference_chosen - chosen) - (reference_chosen - chosen) - 1.0
        loss = loss + 0.1 * distance
        return (loss * mask).sum() / torch.clamp(mask.sum(), min=1.0)

    def full(_beside: Any = beside) -> None:
        loss = forward()
        loss.backward()

    return full


LOSSES: Mapping[str, Callable[[Shapes, Any], Program]] = {
    "cross_entropy": _cross_entropy,
    "kl_div": _kl_div,
    "jsd": _jsd,
    "fused_linear_jsd": _fused_linear_jsd,
    "fused_linear_orpo_loss": _orpo,
    "distill_jsd_loss": _distill_jsd,
    "fused_linear_grpo_loss_token": _grpo,
}
"""By `op` of a row."""
