"""The programs behind the logs of real GPUs, as plain modules: two answers to the same course's assignment.

Written from the descriptions of the logs and from the repositories they name: Wedsonlin/assignment2-systems 8630bcf
(the course's own model, `MEDIUM`) and kkaitlyn111/cs336-a2-systems c1c174d with cs336-assignment1 (`LARGE`). Only what
decides sizes and lifetimes is here. B batch, D width, F feed-forward width, H heads, L layers, V vocabulary.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn

MEDIUM = SimpleNamespace(V=10_000, D=1024, L=24, H=16, F=4096, B=4)
LARGE = SimpleNamespace(V=10_000, D=2560, L=32, H=32, F=10_240, B=4)
CUDA = torch.device("cuda")


def parameter(*shape):
    return nn.Parameter(torch.empty(*shape, device=CUDA))


def course_softmax(scores):
    lowered = scores - torch.max(scores, dim=-1, keepdim=True)[0]
    exponents = torch.exp(lowered)
    return exponents / torch.sum(exponents, dim=-1, keepdim=True)


def own_softmax(scores):
    largest = torch.max(scores, dim=-1, keepdim=True)[0]
    exponents = torch.exp(scores - largest)
    sums = torch.sum(exponents, dim=-1, keepdim=True)
    return exponents / sums


def split_heads(states, heads):
    return states.view(*states.shape[:2], heads, -1).transpose(1, 2)


class Linear(nn.Module):
    """`weight_first`: which operand of the einsum the weight is; it decides who is copied."""

    def __init__(self, num_in, num_out, *, weight_first):
        super().__init__()
        self.weight, self.weight_first = parameter(num_out, num_in), weight_first

    def forward(self, states):
        if self.weight_first:
            # "oi,...i->...o" as torch 2.6 did it; later ones swap the operands (pytorch/pytorch pull request 161755)
            return torch.einsum("oi,...i->o...", self.weight, states).movedim(0, -1)
        return torch.einsum("...i,oi->...o", states, self.weight)


class CourseNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = parameter(width)

    def forward(self, states):
        dtype = states.dtype
        states = states.to(torch.float32)
        scale = torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-5)
        states = states * scale
        return (self.weight * states).to(dtype)


class OwnNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.width = parameter(width), width

    def forward(self, states):
        dtype = states.dtype
        states = states.to(torch.float32)
        norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        scale = torch.sqrt(norm**2 / self.width + 1e-5)
        normed = states / scale
        result = torch.einsum("d,bsd->bsd", self.weight, normed)
        return result.to(dtype)


class CourseRotary(nn.Module):
    """One for all layers."""

    def __init__(self, length, head):
        super().__init__()
        self.register_buffer("cache", torch.empty(2, length, head // 2, device=CUDA), persistent=False)

    def forward(self, states):
        first, second = states.view(*states.shape[:-1], -1, 2).movedim(-1, 0).unbind(0)
        cos, sin = self.cache[:, : states.size(-2), :].unbind(0)
        turned_first = cos * first - sin * second
        turned_second = sin * first + cos * second
        return torch.concat((turned_first, turned_second), dim=-1)


class OwnRotary(nn.Module):
    """One for each layer."""

    def __init__(self, length, head):
        super().__init__()
        self.register_buffer("cache", torch.empty(length, head // 2, 2, device=CUDA), persistent=False)

    def forward(self, states, positions):
        pairs = states.view(*states.shape[:-1], -1, 2)
        cos, sin = self.cache[positions, :, 0], self.cache[positions, :, 1]
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        turned = torch.zeros_like(pairs)
        turned[..., 0] = cos * pairs[..., 0] - sin * pairs[..., 1]
        turned[..., 1] = sin * pairs[..., 0] + cos * pairs[..., 1]
        return turned.reshape(states.shape)


class CourseAttention(nn.Module):
    def __init__(self, config, rotary):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(config.D, config.D, weight_first=False) for _ in range(4))
        self.heads, self.rotary = config.H, rotary

    def forward(self, states):
        length = states.size(1)
        query, key, value = self.q(states), self.k(states), self.v(states)
        query, key, value = (split_heads(one, self.heads) for one in (query, key, value))
        query = self.rotary(query)
        key = self.rotary(key)
        places = torch.arange(length, device=CUDA)
        mask = (places[:, None] >= places[None, :])[None, ...]
        mixed = self.attend(query, key, value, mask)
        mixed = mixed.transpose(1, 2).reshape(*states.shape[:2], -1)
        return self.out(mixed)

    def attend(self, query, key, value, mask):
        scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(key.shape[-1])
        scores = torch.where(mask, scores, float("-inf"))
        weights = course_softmax(scores)
        return torch.einsum("...qk,...kd->...qd", weights, value)


class OwnAttention(nn.Module):
    def __init__(self, config, length):
        super().__init__()
        self.q, self.k, self.v, self.out = (Linear(config.D, config.D, weight_first=True) for _ in range(4))
        self.heads, self.rotary = config.H, OwnRotary(length, config.D // config.H)

    def forward(self, states):
        batch, length, _ = states.shape
        first_query, first_key, first_value = self.q(states), self.k(states), self.v(states)
        query, key, value = (split_heads(one, self.heads) for one in (first_query, first_key, first_value))
        positions = torch.arange(length, device=CUDA).unsqueeze(0).expand(batch, -1)
        query = self.rotary(query, positions)
        key = self.rotary(key, positions)
        mask = torch.triu(torch.ones(length, length, device=CUDA), diagonal=1).to(torch.bool)
        mask = ~mask
        mask = mask.unsqueeze(0).unsqueeze(0).expand(batch, self.heads, -1, -1)
        result = self.attend(query, key, value, mask)
        result = result.transpose(1, 2).reshape(batch, length, -1)
        return self.out(result)

    def attend(self, query, key, value, mask):
        scores = torch.einsum("...qd,...kd->...qk", query, key)
        scores = scores / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(mask == False, -1e9)  # noqa: E712 - it makes a tensor
        weights = own_softmax(scores)
        return torch.einsum("...qk,...kd->...qd", weights, value)


class CourseFeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w1 = Linear(config.D, config.F, weight_first=False)
        self.w2 = Linear(config.F, config.D, weight_first=False)
        self.w3 = Linear(config.D, config.F, weight_first=False)

    def forward(self, states):
        def silu(one):
            return one * torch.sigmoid(one)

        return self.w2(silu(self.w1(states)) * self.w3(states))


class OwnFeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w1 = Linear(config.D, config.F, weight_first=True)
        self.w2 = Linear(config.F, config.D, weight_first=True)
        self.w3 = Linear(config.D, config.F, weight_first=True)

    def forward(self, states):
        t1 = self.w1(states)
        t3 = self.w3(states)
        t2 = torch.sigmoid(t1) * t1
        t4 = t2 * t3
        return self.w2(t4)


class CourseBlock(nn.Module):
    def __init__(self, config, rotary):
        super().__init__()
        self.attention, self.feed_forward = CourseAttention(config, rotary), CourseFeedForward(config)
        self.norm1, self.norm2 = CourseNorm(config.D), CourseNorm(config.D)

    def forward(self, states):
        attended = self.attention(self.norm1(states))
        middle = states + attended
        fed = self.feed_forward(self.norm2(middle))
        return middle + fed


class OwnBlock(nn.Module):
    def __init__(self, config, length):
        super().__init__()
        self.norm1, self.attention = OwnNorm(config.D), OwnAttention(config, length)
        self.norm2, self.feed_forward = OwnNorm(config.D), OwnFeedForward(config)

    def forward(self, states):
        inner = self.norm1(states)
        inner = self.attention(inner)
        states = states + inner
        inner = self.norm2(states)
        inner = self.feed_forward(inner)
        return states + inner


class LanguageModel(nn.Module):
    def __init__(self, config, length, *, own):
        super().__init__()
        self.embedding, self.keeps_embedded = parameter(config.V, config.D), not own
        if own:
            blocks = (OwnBlock(config, length) for _ in range(config.L))
        else:
            rotary = CourseRotary(length, config.D // config.H)
            blocks = (CourseBlock(config, rotary) for _ in range(config.L))
        self.layers = nn.ModuleList(blocks)
        self.norm = (OwnNorm if own else CourseNorm)(config.D)
        self.head = Linear(config.D, config.V, weight_first=own)

    def forward(self, ids):
        states = self.embedding[ids]
        embedded = states if self.keeps_embedded else None  # noqa: F841 - the course's program holds it to the end
        for layer in self.layers:
            states = layer(states)
        states = self.norm(states)
        return self.head(states)


def course_log_softmax(logits):
    largest = torch.max(logits, dim=-1, keepdim=True)[0]
    logits = logits - largest
    return logits - torch.log(torch.sum(torch.exp(logits), dim=-1, keepdim=True))


def course_loss(logits, targets):
    negative = -course_log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


def own_loss(logits, targets):
    logits, targets = logits.reshape(-1, logits.size(-1)), targets.reshape(-1)
    largest = torch.max(logits, dim=-1, keepdim=True).values
    logits = logits - largest
    exponents = torch.exp(logits)
    sums = exponents.sum(dim=-1)
    places = torch.arange(logits.shape[0])
    chosen = logits[places, targets]
    losses = torch.log(sums) - chosen
    return losses.mean()


class CourseAdamW(torch.optim.Optimizer):
    """Makes its two moments anew in every step, and zeros for where there are none even when there are."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01})

    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad.data, self.state[p]
                t = state.get("t", 1)
                p.data -= group["lr"] * group["weight_decay"] * p.data
                before_m = state.get("m", torch.zeros_like(grad))
                before_v = state.get("v", torch.zeros_like(grad))
                m = beta1 * before_m + ((1 - beta1) * grad)
                v = beta2 * before_v + ((1 - beta2) * torch.square(grad))
                rate = group["lr"] * (math.sqrt(1 - beta2**t) / (1 - beta1**t))
                p.data -= rate * m / (torch.sqrt(v) + group["eps"])
                state["m"], state["v"], state["t"] = m, v, t + 1


class OwnAdamW(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01})

    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad.data, self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p.data), torch.zeros_like(p.data)
                mean, square = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                mean.mul_(beta1).add_(grad, alpha=1 - beta1)
                square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                correction = math.sqrt(1 - beta2 ** state["step"])
                denominator = (square.sqrt() / correction).add_(group["eps"])
                p.data.addcdiv_(mean, denominator, value=-group["lr"])
                p.data.add_(p.data, alpha=-group["lr"] * group["weight_decay"])
