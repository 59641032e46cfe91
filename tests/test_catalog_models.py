"""The catalog's tables against the real models: transformers builds each on the meta device, PyTorch lists it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the oracle is torch")
transformers = pytest.importorskip("transformers", reason="the oracle is transformers")

from memsim import catalog  # noqa: E402
from memsim.config import TASKS  # noqa: E402
from memsim.errors import ModelError, UsageError  # noqa: E402
from memsim.record.meta import build_from_config, table_from_module  # noqa: E402

FOLDER = Path(__file__).resolve().parents[1] / "models_catalog"
BUILT_WITH = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["built_with"]["transformers"]
same_transformers = pytest.mark.skipif(
    transformers.__version__ != BUILT_WITH, reason=f"the catalog was built with transformers {BUILT_WITH}"
)
BORROWED = {"internlm2": "LlamaForCausalLM", "baichuan": "LlamaForCausalLM"}
"""Remote code that is never run: the class whose table stands for it."""


def entries_by_type():
    found = {}
    for entry in catalog.entries():
        key = json.dumps([entry.model_class, entry.config, entry.num_parameters], sort_keys=True)
        found.setdefault(entry.model_type, {}).setdefault(key, entry)
    return {model_type: list(entries.values()) for model_type, entries in found.items()}


ENTRIES = entries_by_type()
"""One entry for each distinct class and configuration, by `model_type`."""


def real_config(entry, num_labels=None):
    config = dict(entry.config)
    if entry.model_type in BORROWED:
        config |= {"model_type": "llama", "architectures": [BORROWED[entry.model_type]]}
    built = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    if num_labels is not None:
        built.num_labels = num_labels
    return built


def real_model(entry):
    """Build the class that the hub's config.json names."""
    config = real_config(entry)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=torch.float32)
        model.tie_weights()
        if any("lm_head of its own" in said for said in entry.assumptions):
            # What from_pretrained does; test_from_pretrained_keeps_the_head_of_t5_apart holds that.
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


def task_model(entry, task, num_labels=None):
    config = real_config(entry, num_labels)
    with torch.device("meta"):
        return getattr(transformers, TASKS[task]).from_config(config, dtype=torch.float32)


def assert_equal(entry, task, expected, **options):
    built = entry.model_spec(task, **options).table
    assert [p.name for p in built.parameters] == [p.name for p in expected.parameters], (entry.id, task)
    differ = [(p, q) for p, q in zip(built.parameters, expected.parameters, strict=True) if p != q]
    assert differ == [], (entry.id, task)
    assert built.buffers == expected.buffers, (entry.id, task)


@same_transformers
@pytest.mark.parametrize("model_type", sorted(ENTRIES))
def test_every_table_equals_the_real_model_by_name_shape_tying_gradient_and_owner(model_type):
    for entry in ENTRIES[model_type]:
        assert_equal(entry, None, table_from_module(real_model(entry)), dtype="float32")


@same_transformers
@pytest.mark.parametrize("model_type", sorted(set(ENTRIES) - set(BORROWED)))
def test_the_tasks_of_an_entry_are_those_of_the_auto_classes_and_their_tables_are_real(model_type):
    entry = ENTRIES[model_type][0]
    config_class = type(real_config(entry))
    has = {task for task, auto in TASKS.items() if config_class in getattr(transformers, auto)._model_mapping}
    assert has == set(entry.tasks)
    for task in set(entry.tasks) - {entry.task}:
        model = task_model(entry, task)
        assert entry.model_spec(task).model_class == type(model).__name__
        if type(model).__name__ != entry.model_class:
            assert_equal(entry, task, table_from_module(model), dtype="float32")


@same_transformers
@pytest.mark.parametrize("model_type", sorted(set(ENTRIES) - set(BORROWED)))
def test_heads_follow_the_number_of_labels_as_the_real_classes_do(model_type):
    entry = ENTRIES[model_type][0]
    for task in entry.tasks:
        if not task.endswith(("classification", "answering", "choice", "prediction", "xvector")):
            continue
        try:
            model = task_model(entry, task, num_labels=7)
        except ValueError:
            with pytest.raises(ModelError, match="labels only, not 7"):
                entry.model_spec(task, num_labels=7)
        else:
            if table_from_module(model) == table_from_module(task_model(entry, task, num_labels=5)):
                with pytest.raises(UsageError, match="num_labels 7 would change nothing"):
                    entry.model_spec(task, num_labels=7)
                continue
            assert_equal(entry, task, table_from_module(model), dtype="float32", num_labels=7)


@same_transformers
@pytest.mark.parametrize("model_type", sorted(set(ENTRIES) - set(BORROWED)))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_are_those_of_a_model_that_transformers_loads(model_type, dtype):
    # test_meta holds build_from_config against from_pretrained, dtype by dtype.
    entry = ENTRIES[model_type][0]
    loaded = build_from_config(entry.config, task=None, dtype=dtype).table
    expected = {p.name: p.tensor.dtype for p in loaded.parameters}
    built = entry.model_spec(dtype=dtype).table
    assert {p.name: p.tensor.dtype for p in built.parameters} == expected
    assert built.buffers == loaded.buffers


@pytest.mark.parametrize("equal_heads", [False, True])
def test_from_pretrained_keeps_the_head_of_t5_apart_when_the_checkpoint_holds_another(tmp_path, equal_heads):
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    model.config.tie_word_embeddings = False
    shared = model.shared.weight.detach().clone()
    model.lm_head.weight = torch.nn.Parameter(shared if equal_heads else shared + 1)
    model.all_tied_weights_keys.pop("lm_head.weight", None)
    model.save_pretrained(tmp_path)
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert (loaded.lm_head.weight is loaded.shared.weight) == equal_heads
    assert loaded.encoder.embed_tokens.weight is loaded.shared.weight


@same_transformers
def test_regenerating_an_entry_changes_nothing(tmp_path):
    script = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import regenerate; "
        "written = pathlib.Path(sys.argv[2]); facts = list(regenerate._own_facts()); "
        "regenerate.FOLDER = written; regenerate._own_facts = lambda: iter(facts); "
        "sys.argv = ['regenerate.py', '--only', 'hubert']; regenerate.main()"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(FOLDER), str(tmp_path)], check=True, capture_output=True, timeout=300
    )
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(written) == ["hubert.json", "index.json"]
    assert all((FOLDER / name).read_bytes() == text for name, text in written.items())
