"""The rules of kernels' own memory against the real kernels' requests, and polynomials against arithmetic."""

import pytest
from gpu_fixture import installation, on_gpu  # noqa: F401

from memsim.gpus import find_gpu
from memsim.step.fit import Point, Polynomial, fit, monomials_at
from memsim.step.flash_splits import num_splits
from memsim.step.layers import repetition
from memsim.step.reduction import Processors, ReductionForm, scratch
from memsim.step.sorting import SORTED_ABOVE, num_segments, passes_for, scan_bytes, sort_bytes, unique_bytes

POINTS = [Point(2, 64), Point(3, 128), Point(5, 192), Point(7, 64), Point(4, 320), Point(3, 256)]

REQUESTS = """
torch.cuda.memory._record_memory_history("all", context=None, stacks="python")

def requests(action):
    before = len(torch.cuda.memory._snapshot()["device_traces"][0])
    action()
    trace = torch.cuda.memory._snapshot()["device_traces"][0][before:]
    return [entry["size"] for entry in trace if entry["action"] == "alloc"]
"""

SUMS = (
    REQUESTS
    + """
found = []
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    for rows, columns in {shapes}:
        values = torch.empty(rows, columns, dtype=dtype, device="cuda")
        found.append([str(dtype), rows, columns, 0, requests(lambda: values.sum(0))[1:]])
        found.append([str(dtype), rows, columns, 1, requests(lambda: values.sum(1))[1:]])
        del values
print(json.dumps(found), flush=True)
import os
os._exit(0)  # the threads of backward end badly with the interpreter on an imaginary GPU
"""
)
SHAPES = [
    *((rows, columns) for rows in (255, 768, 1024, 5000, 40000) for columns in (1, 8, 1000, 4096)),
    *((200000, 8000), (1_100_000, 512), (33, 300000), (4, 2**20)),
]


def processors(name):
    gpu = find_gpu(name)
    return Processors(num_multiprocessors=gpu.num_multiprocessors, compute_capability=gpu.capability_text)


@pytest.mark.parametrize("gpu", ["A100", "H100"])
def test_the_scratch_memory_of_a_sum_is_what_the_real_kernel_asks_for(on_gpu, gpu):  # noqa: F811
    itemsizes = {"torch.float32": 4, "torch.bfloat16": 2, "torch.int64": 8}
    wrong = []
    num_with_scratch = 0
    for dtype, rows, columns, dim, asked in on_gpu(SUMS.replace("{shapes}", repr(SHAPES)), gpu, memory_bytes=2**40):
        size = itemsizes[dtype]
        outputs, inputs = (columns, rows) if dim == 0 else (rows, columns)
        contiguous = dim == 1 or columns == 1
        if size == 2 and rows * columns * size > 2**31:
            continue  # bfloat16 beyond 2 GiB keeps its sums apart: no rule here
        form = ReductionForm(value_bytes=size, accumulator_bytes=max(size, 4), contiguous=contiguous, vector=4)
        told = [nbytes for one in scratch(outputs, inputs, form, processors(gpu)) for nbytes in one]
        num_with_scratch += bool(asked)
        if told != asked:
            wrong.append((dtype, rows, columns, dim, told, asked))
    assert wrong == []
    assert num_with_scratch > 20


EMBEDDINGS = (
    REQUESTS
    + """
found = []
for rows in (2, 1000, 30000, 300000):
    for ids in (3072, 3073, 4096, 20000, 100000, 1000000):
        weight = torch.empty(rows, 8, device="cuda", requires_grad=True)
        out = torch.nn.functional.embedding(torch.empty(ids, dtype=torch.long, device="cuda"), weight)
        gradient = torch.empty_like(out)
        found.append([rows, ids, requests(lambda: out.backward(gradient))])
print(json.dumps(found), flush=True)
import os
os._exit(0)  # the threads of backward end badly with the interpreter on an imaginary GPU
"""
)


@pytest.mark.parametrize("gpu", ["A100", "T4", "H100"])
def test_the_memory_of_an_embedding_that_sorts_is_what_the_real_kernel_asks_for(on_gpu, gpu):  # noqa: F811
    capability = find_gpu(gpu).capability_text
    for rows, ids, asked in on_gpu(EMBEDDINGS, gpu, memory_bytes=2**40):
        if ids <= SORTED_ABOVE:
            assert asked == [rows * 8 * 4]
            continue
        most = min(ids, rows)
        segments = num_segments(ids, rows)
        sums = 8 if rows == 2 else 8 * 4  # with few rows, the number of its id for each instead of its sums
        assert asked == [
            *(8 * ids, 8 * ids, 8 * ids, sort_bytes(ids, passes_for(rows), capability), rows * 8 * 4),
            *(8 * ids, 8, 8 * ids, unique_bytes(ids, capability), 8 * most, 8 * most, scan_bytes(most), 8),
            *(8 * segments, segments * sums),
        ], (rows, ids)


SPLITS = (
    REQUESTS
    + """
from torch.nn.functional import scaled_dot_product_attention as attend
found = []
for batch, heads, size in ((1, 32, 128), (2, 8, 128), (1, 4, 64), (2, 12, 64), (1, 8, 256), (3, 2, 32)):
    for length in (64, 128, 192, 320, 512, 1000, 2048, 4096):
        query = torch.empty(batch, heads, length, size, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        found.append([batch, heads, size, length, requests(lambda: attend(query, query, query, is_causal=True))])
print(json.dumps(found), flush=True)
import os
os._exit(0)  # the threads of backward end badly with the interpreter on an imaginary GPU
"""
)


@pytest.mark.parametrize("gpu", ["A100"])
def test_flash_attention_splits_as_the_real_kernel_does(on_gpu, gpu):  # noqa: F811
    seen = set()
    for batch, heads, size, length, asked in on_gpu(SPLITS, gpu):
        splits = num_splits(batch * heads, length, size, processors(gpu))
        sums = 4 * batch * heads * length
        parts = [splits * sums, splits * sums * size] if splits > 1 else []
        assert asked == [2 * batch * heads * length * size, sums, *parts, 16, 8], (batch, heads, size, length)
        seen.add(splits)
    assert len(seen) > 3


def test_a_polynomial_is_found_from_its_values_with_as_few_terms_as_it_has():
    values = [4096 * b * s + 8 * b + 16 for b, s in POINTS]
    assert fit(POINTS, values) == Polynomial((16, 8, 0, 4096, 0, 0, 0))
    halves = [b * s * (s + 1) // 2 for b, s in POINTS]  # a triangle of s: whole numbers, not whole coefficients
    found = fit(POINTS, halves)
    assert found is not None
    assert [found.at(monomials_at(point)) for point in (Point(9, 100), Point(1, 7))] == [9 * 5050, 28]


def test_numbers_that_are_no_polynomial_are_not_fitted():
    assert fit(POINTS, [4096 * b * s + (s == 192) for b, s in POINTS]) is None
    assert fit(POINTS, [max(b * s, 500) for b, s in POINTS]) is None
    assert fit(POINTS[:1], [1]) is None
    # Rounded up to 128: through three lengths goes a parabola, at however many batch sizes.
    lengths = {256: 256, 448: 512, 512: 512}
    points = [Point(b, s) for s in lengths for b in (2, 4, 7, 24)]
    assert fit(points, [48 * b * lengths[s] for b, s in points]) is None


def test_a_fit_needs_a_point_more_than_it_has_terms():
    two_terms = [100 * b + 7 * s for b, s in POINTS]
    assert fit(POINTS[:2], two_terms[:2]) is None
    assert fit(POINTS[:3], two_terms[:3]) == Polynomial((0, 100, 7, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("ABBC", (1, 1, 3)),
        ("ABBBB", (1, 1, 5)),
        ("ABCABCABD", (0, 3, 8)),
        ("AAASSS", (3, 1, 6)),
        ("ABCD", None),
        ("", None),
    ],
)
def test_the_longest_stretch_that_repeats_is_found(kinds, expected):
    assert repetition([ord(kind) for kind in kinds]) == expected


def test_a_known_period_is_kept_where_a_shorter_one_would_do():
    assert repetition([1, 0, 0, 0, 0, 0, 0, 2], 3) == (1, 3, 7)
    assert repetition([1, 0, 0, 2], 3) is None
