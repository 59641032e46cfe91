"""Models with fewer layers stand for the whole: their tables are the catalog's own with layers taken out."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("transformers", minversion="5.0")

from memsim import catalog
from memsim.config import TrainingConfig
from memsim.record.depth import reduced_depth
from memsim.record.layer_kinds import Pattern, pattern_of
from memsim.record.meta import build_from_config

FOLDED = {
    # Layers all alike: the first, two, the last.
    "meta-llama/Llama-3.1-405B": {"model.layers": (126, 4, 1)},
    "google-bert/bert-large-cased": {"bert.encoder.layer": (24, 4, 1)},
    "openai-community/gpt2-xl": {"transformer.h": (48, 4, 1)},
    # T5's first layers hold the table of relative positions: they are heads, so no further first layer is needed.
    "google-t5/t5-11b": {"encoder.block": (24, 4, 1), "decoder.block": (24, 4, 1)},
    "openai/whisper-large-v3": {"model.encoder.layers": (32, 4, 1), "model.decoder.layers": (32, 4, 1)},
    # Every other layer slides: 46 - 6 is even.
    "google/gemma-2-27b": {"model.layers": (46, 6, 2)},
    # Every sixth layer sees everything: 18 is the first number from 1 + 12 on with 48 - 18 = 5 * 6 layers missing.
    "google/gemma-3-12b-it": {
        "model.language_model.layers": (48, 18, 6),
        "model.vision_tower.encoder.layers": (27, 4, 1),
    },
    # Three dense layers, then mixtures of experts.
    "deepseek-ai/DeepSeek-V3": {"model.layers": (61, 6, 1)},
    # [["global", "local"], 12]
    "EleutherAI/gpt-neo-1.3B": {"transformer.h": (24, 6, 2)},
    # Cross attention in layers 3, 8, 13, ...; the vision tower's outputs of layers 3, 7, 15, 23, 30 are put together.
    "meta-llama/Llama-3.2-11B-Vision": {"model.language_model.layers": (40, 15, 5)},
    # Full attention in blocks 7, 15, 23, 31 of the vision tower.
    "Qwen/Qwen2.5-VL-7B-Instruct": {"model.visual.blocks": (32, 24, 8), "model.language_model.layers": (28, 4, 1)},
    # depths [2, 2, 18, 2], windows shifted in every other block.
    "microsoft/swin-base-patch4-window12-384": {"swin.encoder.layers.2.blocks": (18, 6, 2)},
}


def config_of(name):
    entry = catalog.find(name)
    return entry.config, TrainingConfig(task=entry.task, dtype="float32")


def rows(table):
    parameters = [(p.name, p.tensor.shape, p.tied_to, p.module_class) for p in table.parameters]
    return parameters + [(b.name, b.tensor.shape) for b in table.buffers]


def without(table, stacks):
    """Return the rows of a table without the layers that are missing in a reduced model, the others renumbered."""
    text = {}
    for stack in stacks:
        for index in range(stack.num_left):
            text[stack.prefix, stack.whole_index(index)] = index
    prefixes = {stack.prefix for stack in stacks}

    def renamed(name):
        for prefix in prefixes:
            found = re.fullmatch(rf"({re.escape(prefix)})\.(\d+)(\..*)", name)
            if found:
                index = text.get((prefix, int(found[2])))
                return None if index is None else f"{prefix}.{index}{found[3]}"
        return name

    return [(renamed(row[0]), *row[1:]) for row in rows(table) if renamed(row[0]) is not None]


@pytest.mark.parametrize("name", FOLDED)
def test_a_reduced_model_is_the_whole_one_with_layers_taken_out(name):
    config, training = config_of(name)
    whole = build_from_config(config, task=training.task, dtype="float32").table
    found = reduced_depth(config, training)
    assert {s.prefix: (s.num_layers, s.num_left, s.period) for s in found.stacks} == FOLDED[name]
    reduced = build_from_config(found.config, task=training.task, dtype="float32").table
    assert rows(reduced) == without(whole, found.stacks)
    for stack in found.stacks:
        assert (stack.num_layers - stack.num_left) % stack.period == 0


def test_one_more_repetition_gives_another_depth():
    config, training = config_of("google/gemma-3-12b-it")
    found = reduced_depth(config, training, num_periods=3)
    assert [stack.num_left for stack in found.stacks] == [24, 5]


def test_layers_that_differ_in_what_the_configuration_says_of_them_are_not_alike():
    config, training = config_of("meta-llama/Llama-3.1-8B")
    kinds = ["full_attention", "sliding_attention"] * 14
    mixed = {**config, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28}
    found = reduced_depth({**mixed, "layer_types": kinds, "sliding_window": 128, "use_sliding_window": True}, training)
    assert [(stack.num_left, stack.period) for stack in found.stacks] == [(6, 2)]
    assert found.config["layer_types"] == kinds[:6]


@pytest.mark.parametrize("name", ["albert/albert-base-v2", "Qwen/Qwen3-VL-2B-Instruct"])
def test_a_stack_that_cannot_be_shortened_stays_whole(name):
    # ALBERT runs one layer twelve times; outputs of blocks 5, 11, 17 of Qwen3-VL's vision tower go into its text model.
    config, training = config_of(name)
    found = reduced_depth(config, training)
    prefixes = [stack.prefix for stack in found.stacks] if found is not None else []
    assert prefixes == ([] if "albert" in name else ["model.language_model.layers"])


def test_frozen_layers_are_a_head_and_keep_their_place():
    config, training = config_of("meta-llama/Llama-3.1-8B")
    frozen = ("model.embed_tokens", *(f"model.layers.{index}" for index in range(5)))
    found = reduced_depth(config, replace(training, freeze=frozen))
    (stack,) = found.stacks
    # Layers 0 to 4 are frozen; 5 is the first that is trained, but no gradient leaves it; then 26 are alike.
    assert stack.num_left == 5 + 1 + 2 + 1
    assert [stack.whole_index(index) for index in range(9)] == [0, 1, 2, 3, 4, 5, 6, 30, 31]
    assert {re.match(r"model\.layers\.\d+|model\.\w+", name)[0] for name in found.training.freeze} == {
        "model.embed_tokens",
        *(f"model.layers.{index}" for index in range(5)),
    }


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [
        ("aaaaaa", Pattern(head=0, period=1, num_repeated=6)),
        ("abbbbb", Pattern(head=1, period=1, num_repeated=5)),
        ("xyabababz", Pattern(head=2, period=2, num_repeated=6)),
        ("aabaabaab", Pattern(head=0, period=3, num_repeated=9)),
        ("abcdef", None),
        ("abcabc", Pattern(head=0, period=3, num_repeated=6)),
    ],
)
def test_patterns_of_layers(kinds, pattern):
    assert pattern_of(kinds) == pattern
