"""On a dry run, values that decide sizes are true: ids, masks and lengths are what a real GPU would have."""

from gpu_fixture import installation, on_gpu  # noqa: F401

VALUES = "from memsim.record.watch.values import Values\nvalues = Values(torch)\n"
IDS = "ids = torch.tensor([[5, 6, 7, 0, 0], [5, 5, 5, 5, 7]], device='cuda')\n"

# Each line is run on the imaginary GPU and on the CPU: the CPU's answer is the expected one.
EXPRESSIONS = (
    "(ids == 5).sum(1).tolist()",
    "ids.ne(0).nonzero().tolist()",
    "list(torch.zeros(2, 5, 8, device=ids.device)[ids.ne(0)].shape)",
    "list(torch.zeros(2, 5, 8, device=ids.device).masked_select(ids.ne(0)[..., None]).shape)",
    "bool(torch.all(ids.ne(0))), bool((ids >= 0).all()), bool((ids > 6).any())",
    "torch.ones(3, dtype=torch.long, device=ids.device).tolist()",
    "torch.arange(2, 8, 2, device=ids.device).tolist()",
    "ids[:1].expand(3, 5).tolist()",
    "ids.t().contiguous().tolist()",
    "ids.masked_fill(ids == 0, -100).tolist()",
    "torch.where(ids.ne(0), ids, -100).tolist()",
    "ids.ne(0).int().sum(-1).cumsum(0).tolist()",
    "ids.repeat_interleave(ids[0].clamp(max=2), dim=1).tolist()",
    "torch.nn.functional.one_hot(ids[0], 8).tolist()",
    "torch.cat([ids, ids + 1]).tolist()",
    "torch.unique(ids).tolist()",
    "ids.sort(1).values.tolist()",
    "ids.ne(0).long().argmax(1).tolist(), ids.max().item(), ids.max(1).values.tolist()",
    "(1 - ids.ne(0).long()).tolist(), (ids * 2 - 1).tolist(), (ids // 2).tolist(), (ids % 2).tolist()",
    "(torch.arange(4, device=ids.device)[None] <= torch.arange(4, device=ids.device)[:, None]).tolist()",
    "torch.tril(torch.ones(3, 3, dtype=torch.bool, device=ids.device)).tolist()",
    "torch.nn.functional.pad(ids, (1, 1), value=3).tolist(), ids.roll(1, 1).tolist(), ids.flip(1).tolist()",
    "ids.gather(1, ids.ne(0).sum(1, keepdim=True) - 1).tolist(), ids.index_select(1, ids[0, 3:]).tolist()",
    "torch.bincount(ids.flatten()).tolist(), ids.prod(-1).tolist(), ids.diff().tolist()",
)
ASSIGNED = "ids[:, 1:3] = 4\nids[0, 3] += 2\nprint(json.dumps(ids.tolist()))"


def test_integers_and_booleans_have_the_values_that_the_cpu_computes(on_gpu):  # noqa: F811
    show = "".join(f"shown.append(({expression}))\n" for expression in EXPRESSIONS)
    script = f"{VALUES}{IDS}both = []\nfor ids in (ids, ids.cpu()):\n    shown = []\n"
    script += "".join(f"    {line}\n" for line in show.splitlines())
    found, expected = on_gpu(script + "    both.append(shown)\nprint(json.dumps(both))")
    assert len(expected) == len(EXPRESSIONS)
    for expression, one, other in zip(EXPRESSIONS, found, expected, strict=True):
        assert one == other, expression


def test_what_is_assigned_in_place_is_there(on_gpu):  # noqa: F811
    # Columns 1 and 2 are 4; then ids[0, 3], which was 0, is 2.
    assert on_gpu(VALUES + IDS + ASSIGNED) == [[5, 4, 4, 2, 0], [5, 4, 4, 5, 7]]


def test_without_them_every_mask_is_false(on_gpu):  # noqa: F811
    assert on_gpu(IDS + "print(json.dumps(ids.ne(0).sum().item()))") == 0


def test_floating_point_values_stay_zero_and_their_dtypes_those_of_pytorch(on_gpu):  # noqa: F811
    script = """
half, number = torch.ones(2, dtype=torch.bfloat16, device="cuda"), torch.ones(2, dtype=torch.int32, device="cuda")
made = [half * 2.5, number * 2.5, number + 1, 1.0 - half, number.eq(1), half + number]
print(json.dumps([[str(one.dtype) for one in made], (half * 2.5).tolist()]))
"""
    dtypes, values = on_gpu(VALUES + script)
    # torch's own rules of promotion: a Python number does not widen a tensor of its kind.
    kinds = ["bfloat16", "float32", "int32", "bfloat16", "bool", "bfloat16"]
    assert dtypes == [f"torch.{kind}" for kind in kinds]
    assert values == [0.0, 0.0]


def test_computing_on_the_host_allocates_nothing_on_the_device(on_gpu):  # noqa: F811
    script = """
def peak():
    ids = torch.tensor([[5, 6, 7, 0, 0], [5, 5, 5, 5, 7]], device="cuda").t()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    mask = ids.ne(0)
    mask &= ids.lt(7)
    total = mask.sum(0)
    return [torch.cuda.max_memory_allocated() - start, torch.cuda.memory_allocated() - start]

before = peak()
"""
    before, after = on_gpu(script + VALUES + "print(json.dumps([before, peak()]))")
    assert before == after


def test_a_mask_without_padding_leaves_flash_attention_as_on_a_real_gpu(on_gpu):  # noqa: F811
    script = """
import transformers
config = transformers.LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                  num_attention_heads=2, num_key_value_heads=2)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
def kinds(mask):
    logits = model(input_ids=torch.ones(2, 32, dtype=torch.long, device="cuda"), attention_mask=mask.cuda()).logits
    todo, names = [logits.grad_fn], set()
    while todo:
        node = todo.pop()
        names.add(node.name())
        todo += [following for following, _ in node.next_functions if following is not None]
    return sorted(name for name in names if name.startswith("ScaledDotProduct"))
mask = torch.ones(2, 32, dtype=torch.long)
padded = mask.clone()
padded[0, :5] = 0
print(json.dumps([kinds(mask), kinds(padded)]))
"""
    # transformers drops a mask without padding (masking_utils.py, _ignore_causal_mask_sdpa), and FlashAttention takes
    # no mask (PyTorch, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_for_attn_mask).
    plain, padded = on_gpu(VALUES + script)
    assert plain == ["ScaledDotProductFlashAttentionBackward0"]
    assert padded == ["ScaledDotProductEfficientAttentionBackward0"]
