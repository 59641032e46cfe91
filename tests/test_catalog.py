"""The catalog without torch: counts against publication, names, tasks, dtypes, and the folding of its files."""

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memsim.catalog
from memsim import catalog
from memsim.catalog.folding import KEPT_IN_FLOAT32, NUM_LABELS, Leaf, expand, fold
from memsim.config import TASKS
from memsim.errors import ModelError, UnknownNameError, UsageError

ENTRIES = {entry.id: entry for entry in catalog.entries()}


def table(name, task=None, **options):
    return catalog.find(name).model_spec(task, **options).table


def count(name, task=None):
    return table(name, task).num_parameters


# Published counts


def test_the_catalog_holds_514_models_and_459_of_their_counts_are_confirmed():
    assert len(ENTRIES) == 514
    assert sum(e.confirmation == "confirmed by published exact count" for e in ENTRIES.values()) == 459


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        # Each as the model's own safetensors header or the library that trained it states it.
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("gpt2", 124_439_808),
        ("google/flan-t5-base", 247_577_856),
        ("openai/whisper-tiny", 37_760_640),
        ("EleutherAI/gpt-neox-20b", 20_554_567_680),
    ],
)
def test_published_counts_are_reproduced(name, num_parameters):
    assert count(name) == num_parameters


def test_distilbert_as_a_sequence_classifier_has_the_published_count_in_104_tensors():
    built = table("distilbert-base-cased", "sequence-classification")
    assert (built.num_parameters, built.num_parameter_tensors) == (65_783_042, 104)


def test_the_bert_that_publications_count_is_the_base_model():
    assert count("bert-base-uncased", "base") == 109_482_240


def tied_twice(entry):
    return sum(p.tensor.numel for p in entry.model_spec().table.parameters)


def hidden_size(entry):
    return next(entry.config[key] for key in ("hidden_size", "d_model") if key in entry.config)


def without_pooler(entry):
    hidden = hidden_size(entry)
    return count(entry.id, "base") - hidden * hidden - hidden


def stated_delta(entry):
    """Add the counts that the sentence itself gives: "plus the MTP layer (5,539,962,112) and 14,400 ... buffers"."""
    numbers = re.findall(r"\d{1,3}(?:,\d{3})+", entry.published_match.partition("(the ")[0])
    return entry.num_parameters + sum(int(number.replace(",", "")) for number in numbers)


def router_biases(entry):
    return sum(b.tensor.numel for b in entry.model_spec().table.buffers if b.name.endswith("e_score_correction_bias"))


def causal_masks(entry, layers):
    """Count the masks that old checkpoints of a causal model store, positions by positions for a layer."""
    positions = next(entry.config[k] for k in ("max_position_embeddings", "n_positions", "n_ctx") if k in entry.config)
    return layers * positions**2


def rotary_frequencies(entry):
    """Count the frequencies that each layer of GPT-NeoX had: half of the quarter of the head that rotates."""
    head = entry.config["hidden_size"] // entry.config["num_attention_heads"]
    return entry.config["num_hidden_layers"] * (head // 4 // 2)


def frozen(entry):
    built = entry.model_spec().table
    return built.num_parameters - built.num_trainable_parameters


EXPLAINED = {
    "equal": lambda e: e.num_parameters,
    "equal for the backbone class": lambda e: count(e.id, "base"),
    "equal when the tied weight is counted twice": tied_twice,
    "equal when lm_head is tied": lambda e: e.num_parameters - e.config["vocab_size"] * e.config["d_model"],
    "equal as loaded": lambda e: e.num_parameters,
    "backbone without the pooler": without_pooler,
    "backbone without pooler, token-type row and the 2": lambda e: without_pooler(e) - 3 * hidden_size(e),
    "backbone plus a pooler": lambda e: count(e.id, "base") + hidden_size(e) * (hidden_size(e) + 1),
    "backbone plus the 512-element position_ids": lambda e: count(e.id, "base") + 512,
    "backbone plus the 514-element position_ids": lambda e: count(e.id, "base") + 514,
    "plus the 577-element vision position_ids": lambda e: e.num_parameters + 577,
    "less the 2 offset position rows": lambda e: e.num_parameters - 2 * hidden_size(e),
    # Two rows in the encoder, two in the decoder.
    "less the offset position rows, plus one vocabulary": lambda e: e.num_parameters - 4 * 1024 + 1024,
    "less the encoder position table": lambda e: e.num_parameters - frozen(e),
    "plus causal-mask and inv_freq buffers": lambda e: (
        e.num_parameters + causal_masks(e, e.config["num_hidden_layers"]) + rotary_frequencies(e)
    ),
    "plus the causal-mask buffers (half the layers)": lambda e: (
        e.num_parameters + causal_masks(e, e.config["num_layers"] // 2)
    ),
    "plus a stored lm_head and causal-mask buffers": lambda e: tied_twice(e) + causal_masks(e, 12),
    "equal plus 15,872 persistent buffer elements": stated_delta,
    "rotary inv_freq elements stored": stated_delta,
    "plus the MTP layer": stated_delta,
    "plus 14,848 router-bias buffers": stated_delta,
    "plus router-bias buffers, the MTP layer": lambda e: stated_delta(e) + router_biases(e),
}
"""What a sentence of `published_match` says must be done to the counted number to get the published one."""


def explained(entry):
    found = [key for key in EXPLAINED if key in entry.published_match and key != "equal"]
    key = "equal" if entry.published_match == "equal" else found[0] if found else None
    return None if key is None else EXPLAINED[key](entry)


CONFIRMED = [e for e in ENTRIES.values() if e.confirmation == "confirmed by published exact count"]
UNEXPLAINED = [e.id for e in CONFIRMED if explained(e) is None]


@pytest.mark.parametrize("model_type", sorted({e.model_type for e in CONFIRMED}))
def test_exact_published_counts_follow_from_the_table_by_the_stated_difference(model_type):
    for entry in CONFIRMED:
        if entry.model_type == model_type and entry.id not in UNEXPLAINED:
            assert explained(entry) == entry.published_num_parameters, (entry.id, entry.published_match)


def test_few_stated_differences_need_what_the_catalog_does_not_hold():
    # The multi-token-prediction weights of Qwen's checkpoints, the unused projections of gemma-4: 444 of 459 remain.
    assert {ENTRIES[name].model_type for name in UNEXPLAINED} == {"gemma4", "qwen3_5", "qwen3_5_moe", "qwen3_next"}
    assert len(UNEXPLAINED) == 15


# The model-independent facts


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_table_of_an_entry_is_consistent(name):
    entry = ENTRIES[name]
    assert entry.task == entry.tasks[0]
    assert set(entry.tasks) <= set(TASKS)
    own = entry.model_spec()
    assert own.table.num_parameters == entry.num_parameters
    assert own.model_class == entry.model_class
    for task in entry.tasks:
        built = entry.model_spec(task).table
        names = [p.name for p in built.parameters]
        assert len(set(names)) == len(names)
        first = {p.name for p in built.unique}
        assert all(p.tied_to in first for p in built.parameters if p.tied_to)
        assert all(p.module_class for p in built.parameters)


def test_an_entry_says_where_its_facts_come_from():
    assert all(entry.source for entry in ENTRIES.values())
    assert all(entry.published_source for entry in CONFIRMED)


def test_explicit_nulls_of_a_configuration_are_kept():
    # Without it the class would take its default of 1536: 42,508,800 parameters more.
    config = catalog.find("deepseek-ai/DeepSeek-V2-Lite").config
    assert "q_lora_rank" in config
    assert config["q_lora_rank"] is None


# Traps


def test_the_head_of_t5_v1_1_is_counted_apart_as_it_is_loaded():
    parameters = {p.name: p for p in table("google/flan-t5-base").parameters}
    assert parameters["lm_head.weight"].tied_to is None
    assert parameters["lm_head.weight"].tensor.shape == (32128, 768)
    assert parameters["decoder.embed_tokens.weight"].tied_to == "shared.weight"
    assert {p.name: p for p in table("google-t5/t5-base").parameters}["lm_head.weight"].tied_to == "shared.weight"
    # from_config ties it: 32128 * 768 fewer, the other number that is in circulation.
    assert count("google/flan-t5-base") - 32128 * 768 == 222_903_552


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("openai/whisper-tiny", 1500 * 384),
        ("Helsinki-NLP/opus-mt-en-de", 2 * 512 * 512),
        ("google/pegasus-large", 2**21),
    ],
)
def test_fixed_sinusoidal_positions_are_not_trainable(name, frozen):
    built = table(name)
    assert built.num_parameters - built.num_trainable_parameters == frozen


@pytest.mark.parametrize(
    ("name", "tensors", "experts"),
    [("mistralai/Mixtral-8x7B-v0.1", 291, 64), ("Qwen/Qwen3-30B-A3B", 531, 96), ("openai/gpt-oss-20b", 411, 48)],
)
def test_experts_are_fused_into_three_dimensional_tensors(name, tensors, experts):
    # transformers 5 fuses the experts of a layer into two tensors: 2 * 32, 2 * 48 and 2 * 24 layers.
    built = table(name)
    assert built.num_parameter_tensors == tensors
    assert sum(len(p.tensor.shape) == 3 for p in built.parameters) == experts


def test_router_biases_of_deepseek_v3_are_buffers_and_stay_in_float32():
    built = table("deepseek-ai/DeepSeek-V3", dtype="bfloat16")
    biases = [b for b in built.buffers if b.name.endswith("e_score_correction_bias")]
    assert sum(b.tensor.numel for b in biases) == 58 * 256
    assert {(b.tensor.dtype, b.persistent) for b in biases} == {("float32", True)}


def test_remote_code_models_say_that_their_table_is_borrowed():
    spec = catalog.find("internlm/internlm2-7b").model_spec()
    assert spec.model_class == "InternLM2ForCausalLM"
    assert "remote code" in spec.assumptions[0]
    assert "LlamaForCausalLM" in spec.assumptions[0]


def test_weights_that_transformers_does_not_build_are_stated():
    assert any("multi-token-prediction" in said for said in catalog.find("Qwen/Qwen3.5-4B").assumptions)
    assert any("MXFP4" in said for said in catalog.find("openai/gpt-oss-20b").assumptions)


# dtypes and labels


def test_auto_is_the_checkpoints_dtype_where_it_is_known():
    spec = catalog.find("meta-llama/Llama-3.1-8B").model_spec()
    assert spec.dtype == "bfloat16"
    assert {p.tensor.dtype for p in spec.table.parameters} == {"bfloat16"}
    assert spec.table.parameter_bytes == 2 * 8_030_261_248
    assert spec.assumptions == ()


def test_auto_is_float32_with_an_assumption_where_the_checkpoints_is_not_known():
    spec = catalog.find("distilbert-base-cased").model_spec()
    assert spec.dtype == "float32"
    assert "dtype of the checkpoint of distilbert/distilbert-base-cased is not known" in spec.assumptions[-1]
    assert catalog.find("distilbert-base-cased").model_spec(dtype="float32").assumptions == ()


def test_t5_keeps_its_output_projections_in_float32_with_float16_only():
    for dtype, expected in (("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")):
        parameters = table("google-t5/t5-small", dtype=dtype).parameters
        assert {p.tensor.dtype for p in parameters if p.name.endswith("wo.weight")} == {expected}
        assert {p.tensor.dtype for p in parameters if not p.name.endswith("wo.weight")} == {dtype}


def test_integer_buffers_keep_their_dtype():
    buffers = table("microsoft/resnet-50", dtype="bfloat16").buffers
    assert {b.tensor.dtype for b in buffers if b.name.endswith("num_batches_tracked")} == {"int64"}
    assert {b.tensor.dtype for b in buffers if b.name.endswith("running_mean")} == {"bfloat16"}


def test_num_labels_decides_the_head_and_only_the_head():
    two, seven = (table("distilbert-base-cased", "sequence-classification", num_labels=n) for n in (None, 7))
    changed = [
        (p.name, p.tensor.shape, q.tensor.shape)
        for p, q in zip(two.parameters, seven.parameters, strict=True)
        if p != q
    ]
    assert changed == [("classifier.weight", (2, 768), (7, 768)), ("classifier.bias", (2,), (7,))]


def test_the_labels_of_the_models_own_head_are_the_default():
    assert table("google/vit-base-patch16-224").parameters[-1].tensor.shape == (1000,)
    assert catalog.find("google/vit-base-patch16-224").num_labels == 1000


def test_a_class_that_takes_two_labels_only_says_so():
    with pytest.raises(ModelError, match=r"DistilBertForQuestionAnswering of distilbert/.* takes 2 labels only, not 7"):
        table("distilbert-base-cased", "question-answering", num_labels=7)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"task": "ctc"},
            ModelError,
            "openai-community/gpt2 has no ctc model in transformers. It has: causal-lm, base",
        ),
        ({"task": "classify"}, UnknownNameError, "unknown task 'classify'"),
        ({"dtype": "bf16"}, UnknownNameError, "unknown dtype 'bf16'. Did you mean bfloat16"),
    ],
)
def test_what_a_model_does_not_have_is_refused(options, error, said):
    with pytest.raises(error) as raised:
        catalog.find("gpt2").model_spec(**options)
    assert said in str(raised.value)


# Names


def test_every_name_is_found_as_it_is_and_in_any_case():
    names = catalog.names()
    assert len(names) == len(set(names)) == 514 + sum(len(e.aliases) for e in ENTRIES.values())
    for name in names:
        assert catalog.find(name).id == catalog.find(name.upper()).id
    assert all(catalog.find(entry.id) is entry for entry in ENTRIES.values())


def test_an_alias_and_an_id_without_organisation_lead_to_the_model():
    assert catalog.find("gpt2").id == "openai-community/gpt2"
    assert catalog.find("llama-3.1-8b").id == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("name", ["someone-else/gpt2", "", "/", "meta-llama/", "../index.json", "index.json"])
def test_what_is_no_name_is_not_found(name):
    with pytest.raises(UnknownNameError, match="unknown model"):
        catalog.find(name)


def test_a_typo_names_the_nearest_models():
    with pytest.raises(UnknownNameError, match="Did you mean distilbert-base-cased") as error:
        catalog.find("distilbert-base-cazed")
    assert "memsim catalog" in str(error.value)


def test_a_name_that_several_organisations_have_needs_the_organisation(monkeypatch):
    ids = {"one/model": "a.json", "two/model": "a.json"}
    monkeypatch.setattr(memsim.catalog, "_index", lambda: {"ids": ids, "aliases": {}, "by_name": {}})
    with pytest.raises(UnknownNameError, match="one/model, two/model"):
        catalog.find("model")


def test_an_index_cannot_name_a_file_elsewhere():
    with pytest.raises(ModelError, match="which is no file of it"):
        memsim.catalog._file("../pyproject.json")


def test_a_damaged_file_is_an_error_that_says_what_to_do(monkeypatch, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.setattr(memsim.catalog, "_folder", lambda: tmp_path)
    for name in ("broken.json", "absent.json"):
        with pytest.raises(ModelError, match="Install memsim again"):
            memsim.catalog._parsed(name)


def test_the_catalog_needs_only_the_standard_library():
    heavy = ["torch", "transformers", "pandas", "numpy", "huggingface_hub"]
    script = (
        "import json, sys; from memsim import catalog; catalog.find('gpt2').model_spec();"
        f"print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(ran.stdout) == []


# Folding

SIZES = st.lists(st.integers(0, 5) | st.just(NUM_LABELS), max_size=3).map(tuple)
DTYPES = st.sampled_from(["", "int64", "float32", *KEPT_IN_FLOAT32])
LEAVES = st.builds(Leaf, shape=SIZES, dtype=DTYPES, frozen=st.booleans(), transient=st.booleans()) | st.builds(
    Leaf, tied_to=st.sampled_from(["a.weight", "b.0.weight"]), frozen=st.booleans()
)
ATTRIBUTES = st.dictionaries(st.sampled_from(["weight", "bias", "scale"]), LEAVES, max_size=3)
NUMBERS = st.lists(st.integers(0, 12), unique=True, max_size=8).map(sorted)


@st.composite
def module_rows(draw, depth=3):
    """Draw a module as `named_parameters()` lists it: own parameters, then the children in order."""
    owner = draw(st.sampled_from(["", "Linear", "LlamaRMSNorm"]))
    rows = [(name, _owned(leaf, owner)) for name, leaf in draw(ATTRIBUTES).items()]
    if depth == 0:
        return rows
    if draw(st.booleans()):
        alike = draw(st.lists(module_rows(depth=depth - 1), min_size=1, max_size=2))
        children = {str(number): draw(st.sampled_from(alike)) for number in draw(NUMBERS)}
    else:
        names = draw(st.lists(st.sampled_from(["attn", "mlp", "a", "b", "norm2d"]), unique=True, max_size=3))
        children = {name: draw(module_rows(depth=depth - 1)) for name in names}
    return rows + [(f"{child}.{name}", leaf) for child, below in children.items() for name, leaf in below]


def _owned(leaf, owner):
    return Leaf(
        shape=leaf.shape,
        dtype=leaf.dtype,
        tied_to=leaf.tied_to,
        frozen=leaf.frozen,
        transient=leaf.transient,
        module_class=owner,
    )


@given(module_rows())
def test_what_is_folded_unfolds_to_the_same_rows_in_the_same_order(rows):
    assert expand(json.loads(json.dumps(fold(rows))), {}, {}) == rows


def test_equal_layers_become_one_with_ranges():
    same, other = Leaf(shape=(2,), module_class="Norm"), Leaf(shape=(3,), module_class="Norm")
    rows = [(f"layers.{n}.weight", other if n == 3 else same) for n in range(12)]
    assert fold(rows) == {
        "layers": {
            "0-2,4-11": {"$class": "Norm", "weight": [2]},
            "3": {"$class": "Norm", "weight": [3]},
        }
    }


@pytest.mark.parametrize(
    "names", [["b.weight", "a.weight", "b.bias"], ["1.weight", "0.weight"], ["a.weight", "bias", "a.bias"]]
)
def test_names_in_another_order_than_a_modules_are_refused(names):
    with pytest.raises(ValueError, match="not in the order"):
        fold([(name, Leaf(shape=(1,))) for name in names])


def test_a_reference_stands_for_the_shared_subtree():
    shared = {"norm": {"$class": "LayerNorm", "weight": [8]}, "layer": {"pre": "@norm", "post": "@norm"}}
    names = [name for name, _ in expand({"layers": {"0-1": "@layer"}}, shared, {})]
    assert names == [f"layers.{n}.{part}.weight" for n in (0, 1) for part in ("pre", "post")]


@pytest.mark.parametrize("task", [None, "base", "multiple-choice"])
def test_a_number_of_labels_for_a_class_without_such_a_head_is_refused_with_the_tasks_that_have_one(task):
    with pytest.raises(UsageError) as error:
        catalog.find("distilbert-base-cased").model_spec(task=task, num_labels=3)
    assert str(error.value).splitlines()[1] == (
        "Leave it out, or choose a task that takes it: sequence-classification, token-classification."
    )
