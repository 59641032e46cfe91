"""Models in folders and Python objects, against what transformers really loads from the same files."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from memsim.errors import (
    CheckpointError,
    MemsimError,
    MissingPackageError,
    ModelError,
    UnknownNameError,
    UsageError,
)
from memsim.model import ModelSpec, ParameterTable
from memsim.resolve import resolve

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
}
ENCODER_DECODER = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SMALL),
    "llama": lambda: transformers.LlamaConfig(**SMALL, num_key_value_heads=2),
    "llama-tied": lambda: transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=24),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_key_value_heads=2, num_local_experts=4),
    "t5": lambda: transformers.T5Config(**ENCODER_DECODER),
    "resnet": lambda: transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
}
CLASSES = {
    "bert": "BertForMaskedLM",
    "llama": "LlamaForCausalLM",
    "llama-tied": "LlamaForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "mixtral": "MixtralForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "resnet": "ResNetForImageClassification",
}


def build(kind):
    torch.manual_seed(0)
    return getattr(transformers, CLASSES[kind])(CONFIGS[kind]())


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    return folder


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def rows(table):
    """Name, shape, dtype and tying of every parameter of a memsim table."""
    return {(p.name, p.tensor.shape, p.tensor.dtype, p.tied_to is None) for p in table.parameters}


def real_rows(module):
    unique = {name for name, _ in module.named_parameters()}
    return {
        (name, tuple(p.shape), str(p.dtype).removeprefix("torch."), name in unique)
        for name, p in module.named_parameters(remove_duplicate=False)
    }


def buffer_rows(module):
    return {(n, tuple(b.shape), str(b.dtype).removeprefix("torch.")) for n, b in module.named_buffers()}


def loaded(folder, kind, **options):
    return getattr(transformers, CLASSES[kind]).from_pretrained(folder, **options)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_folder_is_the_model_that_from_pretrained_loads(kind, tmp_path):
    save(build(kind), tmp_path, max_shard_size="20KB")
    spec = resolve(tmp_path)
    real = loaded(tmp_path, kind, dtype="auto")
    assert rows(spec.table) == real_rows(real)
    assert {(b.name, b.tensor.shape, b.tensor.dtype) for b in spec.table.buffers} == buffer_rows(real)
    assert spec.model_class == CLASSES[kind]
    assert spec.source == f"folder:{tmp_path}"
    assert spec.dtype == "float32"


@pytest.mark.parametrize("kind", ["llama", "t5", "mixtral"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_checkpoints_keep_what_from_pretrained_keeps_in_float32(kind, dtype, tmp_path):
    save(build(kind).to(getattr(torch, dtype)), tmp_path)
    spec = resolve(tmp_path)
    assert spec.dtype == dtype
    assert rows(spec.table) == real_rows(loaded(tmp_path, kind, dtype="auto"))


def test_the_dtype_of_the_config_goes_before_that_of_the_tensors_and_both_are_named(tmp_path):
    save(build("llama"), tmp_path)
    edit_config(tmp_path, dtype="bfloat16")
    spec = resolve(tmp_path)
    assert rows(spec.table) == real_rows(loaded(tmp_path, "llama", dtype="auto"))
    assert spec.dtype == "bfloat16"
    assert spec.assumptions == (
        'The checkpoint holds float32: bfloat16 was taken, as from_pretrained(dtype="auto") does.',
    )


def test_without_a_dtype_in_the_config_the_first_floating_tensor_decides(tmp_path):
    model = build("llama").to(torch.bfloat16)
    model.model.norm.float()
    save(model, tmp_path)
    edit_config(tmp_path, dtype=..., torch_dtype=...)
    spec = resolve(tmp_path)
    assert rows(spec.table) == real_rows(loaded(tmp_path, "llama", dtype="auto"))
    assert len(spec.assumptions) == 1
    assert spec.assumptions[0].startswith("The checkpoint holds bfloat16 and float32: ")


def test_a_chosen_dtype_is_what_from_pretrained_loads_in_it(tmp_path):
    save(build("t5"), tmp_path)
    spec = resolve(tmp_path, dtype="float16")
    assert rows(spec.table) == real_rows(loaded(tmp_path, "t5", dtype=torch.float16))


def test_a_new_head_is_named_as_untrained(tmp_path):
    save(build("bert"), tmp_path)
    spec = resolve(tmp_path, task="sequence-classification", num_labels=7)
    real = transformers.BertForSequenceClassification.from_pretrained(tmp_path, num_labels=7)
    assert rows(spec.table) == real_rows(real)
    assert spec.assumptions[0] == (
        "4 tensors are not in the checkpoint and would start untrained: "
        "bert.pooler.dense.weight, bert.pooler.dense.bias, classifier.weight and 1 more."
    )
    assert spec.assumptions[1].startswith(
        "5 tensors of the checkpoint would not be used by BertForSequenceClassification: "
    )


@pytest.mark.parametrize("task", ["masked-lm", "base"])
def test_the_prefix_of_a_base_model_is_no_difference(task, tmp_path):
    # A checkpoint of the head's class has names `bert.*`, one of the base class has them bare; both load into both.
    base = transformers.BertModel(CONFIGS["bert"](), add_pooling_layer=False)
    save(base if task == "masked-lm" else build("bert"), tmp_path)
    notes = " ".join(resolve(tmp_path, task=task).assumptions)
    assert "encoder.layer" not in notes
    assert "cls.predictions.transform" in notes


def test_experts_stored_one_by_one_are_told_as_split_otherwise(tmp_path):
    save(build("mixtral"), tmp_path)
    stored = safetensors_torch.load_file(tmp_path / "model.safetensors")
    experts = [name for name in stored if ".experts." in name or "router" in name or ".gate." in name]
    (note,) = resolve(tmp_path).assumptions
    assert f"stores {len(experts)} tensors under other names or split otherwise" in note


def test_a_head_of_another_shape_keeps_the_shape_of_the_config(tmp_path):
    model = transformers.BertForSequenceClassification(CONFIGS["bert"]())
    save(model, tmp_path)
    spec = resolve(tmp_path, num_labels=5)
    real = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path, num_labels=5, ignore_mismatched_sizes=True
    )
    assert rows(spec.table) == real_rows(real)
    assert spec.assumptions == (
        "2 tensors have another shape in the checkpoint (classifier.weight: [2, 32] there, [5, 32] here): "
        "the model's own was taken; from_pretrained needs ignore_mismatched_sizes=True.",
    )


def test_a_tied_head_that_is_stored_apart_is_told_with_its_bytes(tmp_path):
    model = build("t5")
    model.lm_head.weight = torch.nn.Parameter(torch.randn(96, 32))
    save(model, tmp_path)
    spec = resolve(tmp_path)
    real = loaded(tmp_path, "t5")
    # 96 x 32 float32: what the real model holds more, its values being different.
    assert sum(p.nbytes for p in real.parameters()) - spec.table.parameter_bytes == 96 * 32 * 4
    assert spec.assumptions == (
        "lm_head.weight is tied to shared.weight and counted once, though the checkpoint stores both: "
        "if their values differ, loading leaves them apart (12288 bytes of weights more).",
    )


def test_a_quantized_checkpoint_is_said_to_be_counted_unquantized(tmp_path):
    save(build("llama"), tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    (note,) = resolve(tmp_path).assumptions
    assert note.startswith("The checkpoint is quantized: the table is of the same model unquantized, in float32")


def test_without_weights_the_config_decides_and_an_unknown_dtype_is_said(tmp_path):
    CONFIGS["gpt2"]().save_pretrained(tmp_path)
    edit_config(tmp_path, dtype=..., torch_dtype=..., architectures=["GPT2LMHeadModel"])
    spec = resolve(str(tmp_path / "config.json"))
    assert rows(spec.table) == real_rows(build("gpt2"))
    assert spec.assumptions == (
        "The dtype of the weights is not known: float32 was taken; choose one with --dtype.",
        "No checkpoint was compared: it has no model.safetensors and no model.safetensors.index.json.",
    )


class Trap:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


def test_pickled_weights_and_remote_code_are_never_run(tmp_path):
    mark = tmp_path / "was-run"
    folder = tmp_path / "model"
    CONFIGS["gpt2"]().save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(mark)))
    (folder / "modeling_x.py").write_text(f"open({str(mark)!r}, 'w')\nclass X: pass\n")
    edit_config(
        folder,
        dtype="float32",
        architectures=["GPT2LMHeadModel"],
        auto_map={"AutoConfig": "modeling_x.X", "AutoModelForCausalLM": "modeling_x.X"},
    )
    spec = resolve(folder, task="causal-lm")
    assert spec.assumptions == (
        "No checkpoint was compared: its weights are pickled (pytorch_model.bin), which memsim never opens.",
    )
    assert not mark.exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert mark.exists(), "the trap itself does not work"


def test_an_architecture_that_transformers_lacks_is_read_from_the_headers(tmp_path):
    save(build("llama"), tmp_path)
    edit_config(tmp_path, model_type="llamaa", architectures=["LlamaaForCausalLM"])
    spec = resolve(tmp_path)
    assert rows(spec.table) == real_rows(build("llama"))
    assert (spec.model_class, spec.task) == ("LlamaaForCausalLM", "causal-lm")
    assert "No class was built: unknown model_type 'llamaa'. Did you mean llama" in spec.assumptions[0]
    with pytest.raises(UnknownNameError, match="unknown model_type 'llamaa'"):
        resolve(tmp_path, task="base")


def test_a_folder_goes_before_the_catalog_only_where_it_holds_a_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert resolve("gpt2").source.startswith("catalog")
    assert "has no config.json" in refused("./gpt2", ModelError)
    save(build("gpt2"), tmp_path / "gpt2")
    here = {"source": f"folder:{tmp_path / 'gpt2'}", "num_parameters": build("gpt2").num_parameters()}
    for name in ("gpt2", "./gpt2", "gpt2/", str(tmp_path / "gpt2"), "gpt2/config.json", Path("gpt2")):
        spec = resolve(name)
        assert {"source": spec.source, "num_parameters": spec.table.num_parameters} == here
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/gpt2").source == here["source"]
    (tmp_path / "runs").mkdir()
    assert "folder 'runs' has no config.json" in refused("runs", ModelError)
    assert "Did you mean" in refused("gpt3", UnknownNameError)


# Bad input ---------------------------------------------------------------------------------------------------------


def refused(model, kind, **options):
    with pytest.raises(kind) as error:
        resolve(model, **options)
    assert isinstance(error.value, MemsimError)
    assert error.value.exit_code in (1, 2)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


BAD_CONFIGS = {
    "not JSON": (b"{", ModelError, "is not JSON"),
    "not UTF-8": (b'{"a": "\xff"}', ModelError, "is not JSON"),
    "empty": (b"", ModelError, "is not JSON"),
    "an array": (b"[1]", ModelError, "holds a JSON array, and must be one JSON object"),
    "a string": (b'"bert"', ModelError, "holds a JSON string"),
    "null": (b"null", ModelError, "holds a JSON null"),
    "too deep": (b'{"a":' * 50_000, ModelError, "nested too deeply"),
    "too large": (b" " * (16 * 2**20 + 1), ModelError, "is larger than 16777216 bytes"),
    "no model_type": (b'{"hidden_size": 8}', ModelError, 'lacks "model_type"'),
    "model_type is a number": (b'{"model_type": 3}', ModelError, 'lacks "model_type"'),
    "unknown architecture": (
        b'{"model_type": "bertt"}',
        UnknownNameError,
        "unknown model_type 'bertt'. Did you mean bert",
    ),
    "unknown class": (
        b'{"model_type": "bert", "architectures": ["BertForTea"]}',
        UnknownNameError,
        "unknown architecture 'BertForTea'",
    ),
    "negative size": (b'{"model_type": "bert", "hidden_size": -8}', ModelError, "hidden_size is -8"),
    "zero size": (b'{"model_type": "bert", "num_attention_heads": 0}', ModelError, "num_attention_heads is 0"),
    "string size": (b'{"model_type": "bert", "vocab_size": "many"}', ModelError, "vocab_size must be a whole number"),
    "astronomical size": (
        b'{"model_type": "bert", "hidden_size": 1' + b"0" * 30 + b"}",
        ModelError,
        "hidden_size is an integer of 100 bits",
    ),
    "astronomical depth": (
        b'{"model_type": "bert", "num_hidden_layers": 1000000}',
        ModelError,
        "num_hidden_layers is 1000000",
    ),
    "no dtype": (
        b'{"model_type": "bert", "dtype": "float13"}',
        ModelError,
        "dtype is 'float13', and must be one of float32",
    ),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_config_that_is_no_models_is_refused(name, tmp_path):
    content, kind, said = BAD_CONFIGS[name]
    (tmp_path / "config.json").write_bytes(content)
    assert said in refused(tmp_path, kind)


def test_what_is_no_folder_with_a_config_is_refused(tmp_path):
    assert "has no config.json" in refused(tmp_path, ModelError)
    assert "is not a folder" in refused(tmp_path / "none", ModelError)
    assert "is not a folder" in refused("./none", ModelError)
    assert "has no config.json" in refused(f"{tmp_path}{os.sep}config.json", ModelError)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "holds an adapter" in refused(tmp_path, ModelError)
    (tmp_path / "config.json").mkdir()
    assert "holds an adapter" in refused(tmp_path, ModelError)


def test_what_is_no_model_is_refused():
    assert "a model cannot be a int" in refused(3, UsageError)
    assert "unknown dtype 'float13'" in refused("./x", UnknownNameError, dtype="float13")
    assert "unknown task 'tea'" in refused("./x", UnknownNameError, task="tea")


def test_a_task_that_the_architecture_lacks_is_refused_with_those_it_has(tmp_path):
    save(build("resnet"), tmp_path)
    said = refused(tmp_path, ModelError, task="causal-lm")
    assert "no causal-lm" in said
    assert "image-classification" in said


def sharded(folder):
    save(build("llama"), folder, max_shard_size="20KB")
    return folder, json.loads((folder / "model.safetensors.index.json").read_text())


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "shard",
    [
        *("../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "..\\x.safetensors", "C:x.safetensors"),
        *("pytorch_model.bin", "", ".safetensors/../x.safetensors", "a//b.safetensors", "x\n.safetensors", 3, None),
    ],
)
def test_an_index_that_leads_out_of_the_folder_is_refused(shard, tmp_path):
    folder, index = sharded(tmp_path)
    name = next(iter(index["weight_map"]))
    write_index(folder, {**index["weight_map"], name: shard})
    assert "must be a .safetensors file inside the model's own folder" in refused(folder, CheckpointError)


def test_a_shard_in_a_folder_below_is_allowed(tmp_path):
    folder, index = sharded(tmp_path)
    (folder / "weights").mkdir()
    for shard in set(index["weight_map"].values()):
        (folder / shard).rename(folder / "weights" / shard)
    write_index(folder, {name: f"weights/{shard}" for name, shard in index["weight_map"].items()})
    assert resolve(folder).assumptions == ()


def test_an_index_that_lies_is_refused(tmp_path):
    folder, index = sharded(tmp_path)
    weight_map = index["weight_map"]
    shards = sorted(set(weight_map.values()))
    write_index(folder, {**weight_map, "ghost": shards[0]})
    assert "places tensor 'ghost' in" in refused(folder, CheckpointError)
    for content in ("[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', "{"):
        (folder / "model.safetensors.index.json").write_text(content)
        assert "index.json" in refused(folder, CheckpointError)
    write_index(folder, weight_map)
    twice = next(name for name, shard in weight_map.items() if list(weight_map.values()).count(shard) > 1)
    safetensors_torch.save_file({twice: torch.zeros(1)}, folder / "extra.safetensors")
    write_index(folder, {**weight_map, twice: "extra.safetensors"})
    assert "is in several shards" in refused(folder, CheckpointError)
    write_index(folder, weight_map)
    (folder / shards[1]).unlink()
    assert f"{shards[1]} is missing" in refused(folder, CheckpointError)


def test_a_truncated_checkpoint_is_refused(tmp_path):
    save(build("llama"), tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert "it holds" in refused(tmp_path, CheckpointError)
    path.write_bytes(content[:100])
    assert "claims a header of" in refused(tmp_path, CheckpointError)


def test_links_are_followed_only_within_the_folder_and_as_the_cache_of_the_hub_has_them(tmp_path):
    outside = save(build("llama"), tmp_path / "outside")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_bytes((outside / "config.json").read_bytes())
    (folder / "model.safetensors").symlink_to(outside / "model.safetensors")
    assert "leads out of its folder" in refused(folder, CheckpointError)
    (folder / "model.safetensors").unlink()
    (folder / "step.safetensors").symlink_to(outside / "model.safetensors")
    (folder / "model.safetensors").symlink_to("step.safetensors")
    assert "leads out of its folder" in refused(folder, CheckpointError)

    snapshot = tmp_path / "models--a--b" / "snapshots" / ("0" * 40)
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, name in enumerate(("config.json", "model.safetensors")):
        (blobs / str(number)).write_bytes((outside / name).read_bytes())
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    assert resolve(snapshot).table == resolve(outside).table


def test_an_empty_checkpoint_is_said_to_hold_no_tensors(tmp_path):
    save(build("llama"), tmp_path)
    safetensors_torch.save_file({}, tmp_path / "model.safetensors")
    assert resolve(tmp_path).assumptions[-1] == "No checkpoint was compared: its safetensors file holds no tensors."
    ((kind, said),) = without_torch((tmp_path, {}))
    assert kind == "MissingPackageError"
    assert "its safetensors file holds no tensors" in said


def test_a_config_with_a_byte_order_mark_is_refused_as_by_transformers(tmp_path):
    CONFIGS["gpt2"]().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(OSError, match="not a valid JSON file"):
        transformers.AutoConfig.from_pretrained(tmp_path)
    assert "BOM" in refused(tmp_path, ModelError)


def test_an_abstract_class_is_no_model(tmp_path):
    save(build("llama"), tmp_path)
    edit_config(tmp_path, architectures=["LlamaPreTrainedModel"])
    assert resolve(tmp_path).table.num_parameters == build("llama").num_parameters(), "as the headers say"
    (tmp_path / "model.safetensors").unlink()
    assert "unknown architecture 'LlamaPreTrainedModel'" in refused(tmp_path, UnknownNameError, task=None, dtype="auto")


@pytest.mark.parametrize("place", ["/nonexistent-user", "x" * 300, "a\0b", "round"])
def test_paths_that_the_system_refuses_are_an_error_of_ours(place, tmp_path):
    (tmp_path / "round").symlink_to("round")
    said = refused("~no-such-user" + place if place[0] == "/" else tmp_path / place, ModelError)
    assert "cannot be read" in said
    assert len(said) < 800


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_permission_is_an_error_of_ours(name, tmp_path, monkeypatch):
    save(build("gpt2"), tmp_path)
    real = os.stat

    def refuse(path, *args, **options):
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert f"{name} cannot be read: Permission denied" in refused(tmp_path, ModelError)


def test_a_shard_whose_name_no_file_can_have_is_told_briefly(tmp_path):
    folder, index = sharded(tmp_path)
    name = next(iter(index["weight_map"]))
    write_index(folder, {**index["weight_map"], name: "x" * 5000 + ".safetensors"})
    said = refused(folder, ModelError)
    assert "File name too long" in said
    assert len(said) < 800


def test_names_without_end_are_cut_in_every_sentence(tmp_path):
    folder, index = sharded(tmp_path)
    shards = sorted(set(index["weight_map"].values()))
    write_index(folder, {**index["weight_map"], "g\x1b" * 100_000: shards[0]})
    said = refused(folder, CheckpointError)
    assert len(said) < 800
    assert "\x1b" not in said
    folder = save(build("llama"), tmp_path / "single")
    tensors = safetensors_torch.load_file(folder / "model.safetensors")
    safetensors_torch.save_file({**tensors, "y" * 50_000: torch.zeros(3)}, folder / "model.safetensors")
    assert all(len(note) < 800 for note in resolve(folder).assumptions)
    for change in ({"model_type": "z" * 50_000}, {"architectures": ["z" * 50_000]}, {"vocab_size": "z" * 50_000}):
        (folder / "model.safetensors").unlink(missing_ok=True)
        edit_config(folder, **{"model_type": "llama", "vocab_size": 96, **change})
        assert len(refused(folder, MemsimError)) < 800


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "has no config.json" in refused(tmp_path, ModelError)


# Without torch -----------------------------------------------------------------------------------------------------

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ImportError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
"""

RESOLVE = """
import json, sys
from memsim.errors import MemsimError
from memsim.resolve import resolve
for folder, options in json.loads(sys.argv[1]):
    try:
        spec = resolve(folder, **options)
    except MemsimError as error:
        print(json.dumps([type(error).__name__, str(error)]))
        continue
    print(json.dumps({
        "parameters": [[p.name, p.tensor.shape, p.tensor.dtype, p.tied_to is None] for p in spec.table.parameters],
        "buffers": sorted(b.name for b in spec.table.buffers),
        "classes": {p.name: p.module_class for p in spec.table.parameters},
        "frozen": sorted(p.name for p in spec.table.parameters if not p.requires_grad),
        "spec": [spec.task, spec.model_class, spec.dtype], "assumptions": spec.assumptions,
    }))
"""


def without_torch(*calls, block=BLOCK):
    """Resolve each `(folder, options)` in a process that cannot import torch or transformers."""
    argument = json.dumps([(str(folder), options) for folder, options in calls])
    process = subprocess.run(
        [sys.executable, "-c", block + RESOLVE, argument], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def as_rows(answer):
    return {(name, tuple(shape), dtype, first) for name, shape, dtype, first in answer["parameters"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for kind in CLASSES:
        save(build(kind), root / kind, max_shard_size="20KB")
    return root


def test_without_torch_the_headers_give_the_model_that_was_saved(saved):
    kinds = ["bert", "llama", "gpt2", "resnet"]
    for kind, answer in zip(kinds, without_torch(*((saved / kind, {}) for kind in kinds)), strict=True):
        model = build(kind)
        stored = set(model.state_dict(keep_vars=True))
        assert {row[:3] for row in as_rows(answer) if row[3]} == {row[:3] for row in real_rows(model) if row[3]}
        assert answer["buffers"] == sorted(name for name, _ in model.named_buffers() if name in stored)
        assert answer["spec"][1:] == [CLASSES[kind], "float32"]
        owners = dict(model.named_modules())
        for name, found in answer["classes"].items():
            real = type(owners[name.rpartition(".")[0]]).__name__
            assert found in ("", real), name
            assert real not in ("Linear", "Embedding", "Conv1D") or found == real, name
        assert answer["assumptions"][0] == "No class was built, as torch and transformers are not installed."


def test_without_torch_the_same_options_that_need_no_class_work_and_others_name_the_extra(saved):
    half, own, labels, other, config_only = without_torch(
        (saved / "llama", {"dtype": "bfloat16"}),
        (saved / "resnet", {"task": "image-classification", "num_labels": 2}),
        (saved / "resnet", {"num_labels": 3}),
        (saved / "llama", {"task": "sequence-classification"}),
        (saved / "empty", {}),
    )
    assert {row[2] for row in as_rows(half)} == {"bfloat16"}
    assert own["spec"][0] == "image-classification"
    assert labels[0] == other[0] == "MissingPackageError"
    assert "a head for 2 labels, not 3" in labels[1]
    assert "LlamaForCausalLM (causal-lm), not sequence-classification" in other[1]
    for kind, said in (labels, other):
        assert 'pip install "memsim[torch]"' in said, kind
    assert config_only[0] == "ModelError"


def test_a_number_of_labels_that_would_change_nothing_is_refused_with_the_tasks_that_take_it(saved):
    for model, options in ((saved / "bert", {}), (saved / "llama", {}), (CONFIGS["bert"](), {"task": "base"})):
        said = refused(model, UsageError, num_labels=3, **options)
        assert "has no head with a number of labels, so num_labels 3 would change nothing" in said
        assert "choose a task that takes it: sequence-classification, token-classification" in said
    assert resolve(saved / "resnet", num_labels=3).model_class == "ResNetForImageClassification"
    bert, resnet = without_torch((saved / "bert", {"num_labels": 3}), (saved / "resnet", {"num_labels": 3}))
    assert bert[0] == "NoLabelsError"
    assert "BertForMaskedLM has no head with a number of labels" in bert[1]
    assert resnet[0] == "MissingPackageError"


def test_without_torch_a_config_without_safetensors_names_the_extra(tmp_path):
    CONFIGS["gpt2"]().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    ((kind, said),) = without_torch((tmp_path, {}))
    assert kind == "MissingPackageError"
    assert "its weights are pickled (pytorch_model.bin), which memsim never opens" in said
    assert 'pip install "memsim[torch]"' in said
    assert len(said.splitlines()) <= 3


def test_the_blocker_is_what_makes_torch_missing(saved):
    with_torch, without = (
        without_torch((saved / "llama", {"task": "sequence-classification"}), block=block)[0] for block in ("", BLOCK)
    )
    assert with_torch["spec"][1] == "LlamaForSequenceClassification"
    assert without[0] == "MissingPackageError"


def test_without_torch_tied_heads_buffers_and_old_names_are_told_by_their_names(tmp_path):
    tensors = {
        "transformer.wte.weight": torch.zeros(96, 32),
        "lm_head.weight": torch.zeros(96, 32),
        "transformer.h.0.attn.bias": torch.zeros(1, 1, 24, 24, dtype=torch.bool),
        "transformer.h.0.attn.masked_bias": torch.zeros(()),
        "transformer.h.0.attn.c_attn.bias": torch.zeros(96),
        "transformer.h.0.attn.rotary_emb.inv_freq": torch.zeros(4),
        "embeddings.position_ids": torch.zeros(1, 24, dtype=torch.int64),
        "embeddings.LayerNorm.gamma": torch.zeros(32),
        "embeddings.LayerNorm.beta": torch.zeros(32),
    }
    notes = {}
    for tie in (True, False, None):
        folder = tmp_path / str(tie)
        folder.mkdir()
        safetensors_torch.save_file(tensors, folder / "model.safetensors")
        config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "tie_word_embeddings": tie}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        (answer,) = without_torch((folder, {}))
        assert answer["buffers"] == [
            "embeddings.position_ids",
            "transformer.h.0.attn.bias",
            "transformer.h.0.attn.masked_bias",
            "transformer.h.0.attn.rotary_emb.inv_freq",
        ]
        assert {"embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"} <= set(answer["classes"])
        first = {row[0]: row[3] for row in as_rows(answer)}
        assert first["lm_head.weight"] is (tie is not True)
        notes[tie] = answer["assumptions"]
    assert "12288 bytes of weights more" in notes[True][-1]
    assert "does not say whether they are tied: they were counted as two" in notes[None][-1]
    assert not any("tied" in note for note in notes[False])


def test_without_torch_packed_tensors_are_counted_as_stored_and_not_trained(tmp_path):
    tensors = {
        "model.layers.0.q_proj.qweight": torch.zeros(4, 32, dtype=torch.int32),
        "model.layers.0.q_proj.scales": torch.zeros(1, 32, dtype=torch.float16),
        "model.layers.0.k_proj.weight": torch.zeros(512, 1, dtype=torch.uint8),
        "model.embed_tokens.weight": torch.zeros(96, 32, dtype=torch.float16),
    }
    safetensors_torch.save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "llama", "dtype": "float16", "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (answer,) = without_torch((tmp_path, {"dtype": "float32"}))
    assert answer["buffers"] == ["model.layers.0.q_proj.qweight", "model.layers.0.q_proj.scales"]
    assert answer["frozen"] == ["model.layers.0.k_proj.weight"]
    assert {row[2] for row in as_rows(answer)} == {"uint8", "float16"}
    assert "The checkpoint is quantized: its packed tensors are counted as stored" in " ".join(answer["assumptions"])


def test_without_torch_a_checkpoint_of_mixed_dtypes_is_what_from_pretrained_loads_where_the_family_is_known(tmp_path):
    model = build("llama").to(torch.bfloat16)
    model.model.norm.float()
    save(model, tmp_path / "known")
    save(model, tmp_path / "unknown")
    edit_config(tmp_path / "unknown", model_type="llamaa")
    known, unknown, chosen = without_torch(
        (tmp_path / "known", {}), (tmp_path / "unknown", {}), (tmp_path / "unknown", {"dtype": "bfloat16"})
    )
    assert as_rows(known) == real_rows(loaded(tmp_path / "known", "llama", dtype="auto"))
    assert any(note.startswith("The checkpoint holds bfloat16 and float32: bfloat16") for note in known["assumptions"])
    assert {row[0] for row in as_rows(unknown) if row[2] == "float32"} == {"model.norm.weight"}
    assert "The checkpoint mixes bfloat16 and float32: each tensor keeps its own dtype." in unknown["assumptions"]
    assert {row[2] for row in as_rows(chosen)} == {"bfloat16"}
    assert any("what llamaa keeps in float32" in note for note in chosen["assumptions"])


TINY_DEBERTA = {**SMALL, "pos_att_type": ["c2p"], "relative_attention": True}
KEEPERS = {
    # Class, configuration; what each keeps is transformers' own business: the real load is the oracle.
    "t5": ("T5ForConditionalGeneration", "T5Config", ENCODER_DECODER),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 64}),
    "deberta": ("DebertaForMaskedLM", "DebertaConfig", TINY_DEBERTA),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KEEPERS)
def test_without_torch_what_a_family_keeps_in_float32_is_float32(kind, dtype, tmp_path):
    cls, config, sizes = KEEPERS[kind]
    model = getattr(transformers, cls)(getattr(transformers, config)(**sizes)).to(getattr(torch, dtype))
    save(model, tmp_path)
    real = getattr(transformers, cls).from_pretrained(tmp_path, dtype="auto")
    (answer,) = without_torch((tmp_path, {}))
    found = {row[0]: row[2] for row in as_rows(answer)}
    expected = {name: str(p.dtype).removeprefix("torch.") for name, p in real.named_parameters()}
    assert {name: found[name] for name in expected.keys() & found.keys()} == {
        name: expected[name] for name in expected.keys() & found.keys()
    }
    assert expected.keys() & found.keys()
    assert ("float32" in expected.values()) is (dtype == "float16" or kind == "deberta")


def test_without_torch_the_bytes_of_a_half_precision_t5_are_those_of_the_real_one(tmp_path):
    save(build("t5").half(), tmp_path)
    real = loaded(tmp_path, "t5", dtype="auto")
    (answer,) = without_torch((tmp_path, {}))
    itemsizes = {"float16": 2, "float32": 4}
    counted = sum(int(product_of(row[1])) * itemsizes[row[2]] for row in as_rows(answer) if row[3])
    assert counted == sum(p.nbytes for p in real.parameters())


def product_of(shape):
    product = 1
    for size in shape:
        product *= size
    return product


def test_the_table_of_what_stays_in_float32_is_that_of_the_installed_transformers():
    from memsim import catalog

    built_with = json.loads((Path(__file__).resolve().parents[1] / "models_catalog" / "float32.json").read_text())
    if built_with["built_with"]["transformers"] != transformers.__version__:
        pytest.skip("the table is of another version of transformers")
    kept = catalog.kept_in_float32()
    assert set(kept) == set(transformers.CONFIG_MAPPING.keys())
    for model_type, cls in (("t5", "T5PreTrainedModel"), ("deepseek_v3", "DeepseekV3PreTrainedModel")):
        module = getattr(transformers, cls)
        assert set(kept[model_type].get("float16", ())) == set(module._keep_in_fp32_modules or ())
        assert set(kept[model_type].get("half", ())) == set(module._keep_in_fp32_modules_strict or ())


def test_without_torch_experts_stored_one_by_one_are_said_not_to_be_what_transformers_loads(saved):
    (answer,) = without_torch((saved / "mixtral", {}))
    # 2 layers x 4 experts x 3 matrices.
    (note,) = [note for note in answer["assumptions"] if "experts one by one" in note]
    assert note.startswith("The checkpoint stores experts one by one (24 tensors, the first is model.layers.0.")
    assert len(answer["parameters"]) > len(real_rows(build("mixtral")))


# Python objects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16", "float64"])
def test_a_module_is_itself_and_a_dtype_casts_as_to_does(dtype):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    module[1].weight = module[0].weight
    spec = resolve(module, dtype=dtype)
    if dtype != "auto":
        module.to(getattr(torch, dtype))
    assert rows(spec.table) == real_rows(module)
    assert {(b.name, b.tensor.shape, b.tensor.dtype) for b in spec.table.buffers} == buffer_rows(module)
    assert (spec.name, spec.source, spec.model_class) == ("Sequential", "module:Sequential", "Sequential")
    assert spec.dtype == ("float32" if dtype == "auto" else dtype)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "int8"])
def test_a_module_is_labelled_with_the_dtype_of_most_of_its_tensors(dtype):
    module = torch.nn.Module()
    for name in "abc":
        value = torch.zeros(4, dtype=getattr(torch, dtype))
        module.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    if dtype.startswith("float"):
        module.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    assert resolve(module).dtype == dtype


def test_a_built_module_has_its_task_and_labels_already():
    module = torch.nn.Linear(2, 2)
    assert "task='base' cannot change a module" in refused(module, UsageError, task="base")
    assert "num_labels=3 cannot change a module" in refused(module, UsageError, num_labels=3)


def test_a_module_of_transformers_brings_its_config():
    model = build("bert")
    assert resolve(model).config["hidden_size"] == 32


def test_a_config_object_is_the_model_that_transformers_builds():
    config = CONFIGS["bert"]()
    spec = resolve(config, task="token-classification", num_labels=9)
    config.num_labels = 9
    assert rows(spec.table) == real_rows(transformers.BertForTokenClassification(config))
    assert spec.source == "config:BertConfig"
    assert spec.name == "BertConfig"
    assert spec.assumptions == (
        "The config states no dtype for the weights: float32 was taken; choose one with dtype=.",
    )
    config.dtype = torch.bfloat16
    assert resolve(config).dtype == "bfloat16"
    assert resolve(config).assumptions == ()


def test_a_resolved_model_is_returned_as_it_is():
    spec = ModelSpec(
        name="x", source="module:X", task="", model_class="X", dtype="float32", table=ParameterTable(parameters=())
    )
    assert resolve(spec, dtype="bfloat16") is spec


def test_missing_packages_are_an_error_of_their_own():
    # The names that the messages promise are extras of this package.
    text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text()
    assert "\ntorch = [" in text
    assert MissingPackageError("x").exit_code == 1
