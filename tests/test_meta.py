"""Tables of real modules, and of configurations: the oracle is torch and transformers themselves."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="the oracle is torch")
transformers = pytest.importorskip("transformers", reason="the oracle is transformers")

from memsim.errors import MissingPackageError, ModelError, UnknownNameError  # noqa: E402
from memsim.record.architecture import tasks_of  # noqa: E402
from memsim.record.config_guard import MAX_LAYERS  # noqa: E402
from memsim.record.meta import build_from_config, table_from_module  # noqa: E402

TINY = {
    "bert": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12},
    "t5": {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 64},
    "rwkv": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 64, "context_length": 16},
    "mamba": {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4},
    "bart": {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8,
        "vocab_size": 64,
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "gemma2": {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "intermediate_size": 12,
        "vocab_size": 64,
    },
    "gpt_oss": {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "intermediate_size": 8,
        "vocab_size": 64,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "deepseek_v2": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "moe_intermediate_size": 8,
        "vocab_size": 64,
        "q_lora_rank": None,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "glm4_moe": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 16,
        "moe_intermediate_size": 8,
        "vocab_size": 64,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
}
TINY["deepseek_v3"] = TINY["deepseek_v2"] | {"q_lora_rank": 8}
CLASSES = {
    "bert": "BertForMaskedLM",
    "t5": "T5ForConditionalGeneration",
    "rwkv": "RwkvForCausalLM",
    "mamba": "MambaForCausalLM",
    "bart": "BartForConditionalGeneration",
    "resnet": "ResNetForImageClassification",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}


def tiny(model_type, **more):
    return {"model_type": model_type, **TINY[model_type], "architectures": [CLASSES[model_type]], **more}


def real_model(config):
    built = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    return getattr(transformers, config["architectures"][0])(built)


def tensors(table):
    parameters = [(p.name, p.tensor.shape, p.tensor.dtype, p.tied_to, p.requires_grad) for p in table.parameters]
    return parameters, [(b.name, b.tensor.shape, b.tensor.dtype, b.persistent) for b in table.buffers]


class Lookup(torch.nn.Embedding):
    """A subclass, as many models have one."""


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros((4, 1)), persistent=False)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Lookup(5, 3)
        self.scale = Scale()
        self.conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 2, 1))
        self.head = torch.nn.Linear(3, 5)
        self.head.weight = self.embed.weight


def test_a_table_lists_what_the_module_has_with_owner_tying_and_dtype():
    parameters = {p.name: p for p in table_from_module(Net()).parameters}
    assert list(parameters) == [
        "embed.weight",
        "scale.weight",
        "conv.bias",
        "conv.parametrizations.weight.original0",
        "conv.parametrizations.weight.original1",
        "head.weight",
        "head.bias",
    ]
    assert {name: p.module_class for name, p in parameters.items()} == {
        "embed.weight": "Embedding",
        "scale.weight": "Scale",
        "conv.bias": "Conv1d",
        "conv.parametrizations.weight.original0": "ParametrizationList",
        "conv.parametrizations.weight.original1": "ParametrizationList",
        "head.weight": "Linear",
        "head.bias": "Linear",
    }
    assert {name: p.tied_to for name, p in parameters.items() if p.tied_to} == {"head.weight": "embed.weight"}
    assert [name for name, p in parameters.items() if not p.requires_grad] == ["scale.weight"]
    assert parameters["scale.weight"].tensor.dtype == "float64"
    assert parameters["embed.weight"].tensor.shape == (5, 3)


def test_a_table_counts_a_tied_parameter_once_as_pytorch_does():
    net = Net()
    table = table_from_module(net)
    assert table.num_parameters == sum(p.numel() for p in net.parameters())
    assert table.num_parameter_tensors == len(list(net.parameters())) == len(table.parameters) - 1
    assert [p.name for p in table.trainable] == [n for n, p in net.named_parameters() if p.requires_grad]


def test_buffers_say_whether_the_state_dict_holds_them():
    net = Net()
    buffers = {b.name: b for b in table_from_module(net).buffers}
    assert (
        {name for name, b in buffers.items() if b.persistent} == {"scale.seen"} == set(buffers) & set(net.state_dict())
    )
    assert buffers["scale.seen"].tensor.dtype == "int64"
    assert buffers["scale.cache"].tensor.shape == (4, 1)


def test_a_module_on_the_meta_device_has_the_same_table():
    with torch.device("meta"):
        on_meta = Net()
    assert table_from_module(on_meta) == table_from_module(Net())


def test_distilbert_as_a_sequence_classifier_has_the_published_count():
    config = {"model_type": "distilbert", "vocab_size": 28996, "architectures": ["DistilBertForMaskedLM"]}
    built = build_from_config(config, task="sequence-classification", dtype="float32")
    assert (built.table.num_parameters, built.table.num_parameter_tensors) == (65_783_042, 104)
    assert (built.model_class, built.task) == ("DistilBertForSequenceClassification", "sequence-classification")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model_type", sorted(TINY))
def test_dtypes_are_those_that_from_pretrained_gives(model_type, dtype, tmp_path):
    config = tiny(model_type)
    real_model(config).save_pretrained(tmp_path)
    cls = getattr(transformers, CLASSES[model_type])
    loaded = cls.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    built = build_from_config(config, task=None, dtype=dtype)
    assert built.model_class == CLASSES[model_type]
    assert tensors(built.table) == tensors(table_from_module(loaded))


@pytest.mark.parametrize(
    ("model_type", "dtype", "kept"),
    [
        ("t5", "float16", "wo.weight"),
        ("rwkv", "float16", "time_decay"),
        ("gpt_oss", "float16", "norm.weight"),
        ("deepseek_v3", "bfloat16", "mlp.gate.weight"),
    ],
)
def test_what_transformers_keeps_in_float32_is_float32(model_type, dtype, kept):
    table = build_from_config(tiny(model_type), task=None, dtype=dtype).table
    dtypes = {p.name: p.tensor.dtype for p in table.parameters}
    assert {d for name, d in dtypes.items() if name.endswith(kept)} == {"float32"}
    assert dtype in dtypes.values()


def test_num_labels_replaces_the_labels_that_the_configuration_names():
    config = tiny("bert", id2label={"0": "no", "1": "yes", "2": "both"})
    shapes = {
        labels: build_from_config(config, task="token-classification", dtype="float32", num_labels=labels)
        .table.parameters[-1]
        .tensor.shape
        for labels in (None, 7)
    }
    assert shapes == {None: (3,), 7: (7,)}


def test_without_architectures_the_base_model_is_built():
    config = {key: value for key, value in tiny("bert").items() if key != "architectures"}
    assert build_from_config(config, task=None, dtype="float32").model_class == "BertModel"


def test_the_hubs_other_spelling_of_a_class_is_understood():
    config = tiny("bert") | {"architectures": ["BERTForMaskedLM"]}
    assert build_from_config(config, task=None, dtype="float32").model_class == "BertForMaskedLM"


def test_the_text_tower_of_a_multimodal_model_is_built_from_its_own_part_of_the_configuration():
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = {"model_type": "llama4", "text_config": {**text, "vocab_size": 64}}
    for more, task in (({"architectures": ["Llama4ForCausalLM"]}, None), ({}, "causal-lm")):
        built = build_from_config(config | more, task=task, dtype="float32")
        assert built.model_class == "Llama4ForCausalLM"
        assert built.table.parameters[0].tensor.shape == (64, 16)


def test_tasks_are_those_of_the_auto_classes():
    config_class = transformers.CONFIG_MAPPING["bert"]
    assert config_class in transformers.AutoModelForNextSentencePrediction._model_mapping
    assert config_class not in transformers.AutoModelForCTC._model_mapping
    tasks = tasks_of("bert")
    assert "next-sentence-prediction" in tasks
    assert "ctc" not in tasks


def test_nothing_is_fetched_or_run_for_a_hostile_configuration(monkeypatch):
    import transformers.dynamic_module_utils as remote

    def refuse(*args, **kwargs):
        raise AssertionError("remote code was asked for")

    monkeypatch.setattr(remote, "get_class_from_dynamic_module", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    config = tiny(
        "bert",
        auto_map={"AutoModelForMaskedLM": "evil--repo.Evil"},
        attn_implementation="kernels-community/evil",
        _attn_implementation="kernels-community/evil",
        quantization_config={"quant_method": "gptq", "bits": 4},
        use_pretrained_backbone=True,
    )
    plain = build_from_config(tiny("bert"), task="masked-lm", dtype="float32")
    assert build_from_config(config, task="masked-lm", dtype="float32") == plain


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "model_type must be a name"),
        ({"model_type": 3}, "model_type must be a name such as 'llama', not 3"),
        (tiny("bert", hidden_size=-8), "hidden_size is -8; it must be at least 1"),
        (tiny("bert", hidden_size=0), "hidden_size is 0; it must be at least 1"),
        (tiny("bert", hidden_size="big"), "hidden_size must be a whole number, not 'big'"),
        (tiny("bert", hidden_size=8.5), "hidden_size must be a whole number, not 8.5"),
        (tiny("bert", num_hidden_layers=True), "num_hidden_layers must be a whole number, not True"),
        (
            tiny("bert", num_hidden_layers=10**9),
            f"is 1000000000; at most {MAX_LAYERS:,} can be built",
        ),
        (tiny("bert", vocab_size=10**4000), "vocab_size is an integer of 13288 bits; at most 100,000,000"),
        (tiny("bert", num_labels=10**9), "num_labels is 1000000000; at most 100,000"),
        (tiny("bert", max_position_embeddings=-1), "max_position_embeddings is -1; it must be at least 0"),
        (tiny("bert", num_attention_heads=3), "not a multiple of the number of attention heads"),
        (tiny("bert", pad_token_id=10**30), "pad_token_id is an integer of 100 bits"),
        (tiny("bert", vocab_size=10**8, hidden_size=10**8), "at most 1,000,000,000,000,000 are plausible"),
        (tiny("resnet", depths=[1, 10**9]), "depths is 1000000000; at most"),
        (tiny("glm4_moe", num_hidden_layers=1000, n_routed_experts=10**6), "1,000 layers with 1,000,000 experts each"),
        ({"model_type": "llama4", "text_config": {"num_hidden_layers": -1}}, "num_hidden_layers is -1"),
    ],
)
def test_a_configuration_that_makes_no_model_is_refused_in_a_few_words(config, said):
    with pytest.raises(ModelError) as error:
        build_from_config(config, task=None, dtype="float32")
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


def test_modules_without_end_are_not_built(monkeypatch):
    config = {"model_type": "albert", "num_hidden_groups": 1000, "hidden_size": 8, "num_attention_heads": 2}
    monkeypatch.setattr("memsim.record.architecture.MAX_REGISTRATIONS", 1000)
    with pytest.raises(ModelError, match="more than 1,000 modules and parameter tensors"):
        build_from_config(config, task=None, dtype="float32")
    # Some 98 modules and parameters each time: the limit is for one model, not for all that are ever built.
    for _ in range(30):
        build_from_config(tiny("bert"), task=None, dtype="float32")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "albert", "inner_group_num": 20_000, "num_hidden_groups": 10**6}, "inner_group_num is 20000"),
        ({"model_type": "albert", "inner_group_num": 999, "num_hidden_groups": 999}, "11976012 layers in all"),
        (tiny("resnet", depths=[999, 999, 999]), "2997 layers in all; at most 1,000 can be built"),
        (tiny("resnet", depths=[900] * 5000), "4500000 layers in all"),
        (tiny("resnet", hidden_sizes=[8] * 10**5), "hidden_sizes is a list of 100,000 entries"),
        ({"model_type": "perceiver", "num_blocks": 900, "num_self_attends_per_block": 900}, "810000 layers in all"),
        ({"model_type": "gpt_neo", "attention_types": [[["global", "local"], 10**9]]}, "attention_types is 1000000000"),
        ({"model_type": "reformer", "attn_layers": ["local"] * 10**5}, "attn_layers is a list of 100,000 entries"),
        ({"model_type": "funnel", "block_sizes": [900] * 9}, "8100 layers in all"),
        ({"model_type": "levit", "image_size": 10**4}, "image_size 10000 and stride 2 make 625 points a side"),
        ({"model_type": "detr", "backbone_config": [{"depths": [999, 999]}]}, "1998 layers in all"),
        ({"model_type": "bert", "num_labels": [[[[[[[[[[1]]]]]]]]]]}, "nested at most 8 deep"),
    ],
)
def test_what_would_build_for_minutes_is_refused_before_anything_is_built(config, said, monkeypatch):
    monkeypatch.setattr("torch.nn.Module.__init__", lambda *_: pytest.fail("a module was built"))
    full = {"num_hidden_layers": 12, **config} if config["model_type"] == "albert" else config
    with pytest.raises(ModelError) as error:
        build_from_config(full, task=None, dtype="float32")
    assert said in str(error.value)


def test_a_list_of_which_layers_is_no_number_of_layers():
    listed = {"cross_attention_layers": [300, 800], "intermediate_layers_indices": [3, 900]}
    plain = build_from_config(tiny("bert"), task=None, dtype="float32")
    assert build_from_config(tiny("bert", **listed), task=None, dtype="float32") == plain


def test_objects_nested_without_end_are_refused():
    config = {"model_type": "bert"}
    for _ in range(50):
        config = {"model_type": "bert", "text_config": config}
    with pytest.raises(ModelError, match="nests objects more than"):
        build_from_config(config, task=None, dtype="float32")


def test_as_many_labels_as_nobody_has_are_refused():
    with pytest.raises(ModelError, match="num_labels is 1000000000"):
        build_from_config(tiny("bert"), task="sequence-classification", dtype="float32", num_labels=10**9)


def test_an_unknown_model_type_names_near_ones():
    with pytest.raises(UnknownNameError, match=r"unknown model_type 'lama'. Did you mean llama") as error:
        build_from_config({"model_type": "lama"}, task=None, dtype="float32")
    assert "remote code is never run" in str(error.value)


def test_an_unknown_architecture_names_near_ones_and_the_tasks():
    config = tiny("bert") | {"architectures": ["BertForMaskedLMs"]}
    with pytest.raises(UnknownNameError, match=r"unknown architecture 'BertForMaskedLMs'.*BertForMaskedLM.*masked-lm"):
        build_from_config(config, task=None, dtype="float32")


def test_a_class_of_another_model_type_is_not_built():
    with pytest.raises(UnknownNameError, match="LlamaForCausalLM"):
        build_from_config(tiny("bert") | {"architectures": ["LlamaForCausalLM"]}, task=None, dtype="float32")


def test_a_task_that_the_architecture_lacks_lists_those_it_has():
    with pytest.raises(ModelError, match=r"bert has no ctc model in transformers. It has: base, .*masked-lm"):
        build_from_config(tiny("bert"), task="ctc", dtype="float32")


def test_an_unknown_task_is_refused():
    with pytest.raises(UnknownNameError, match="unknown task 'cls'"):
        build_from_config(tiny("bert"), task="cls", dtype="float32")


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_an_absent_package_is_named_with_the_extra_that_brings_it(monkeypatch, absent):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingPackageError, match=rf'{absent}.*pip install "memsim\[torch\]"'):
        build_from_config(tiny("bert"), task=None, dtype="float32")


def test_importing_the_module_imports_neither_torch_nor_transformers():
    script = (
        "import json, sys, memsim.record.meta;"
        "print(json.dumps([name for name in ('torch', 'transformers') if name in sys.modules]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(ran.stdout) == []


def test_the_abstract_class_of_a_family_is_no_architecture():
    config = tiny("bert") | {"architectures": ["BertPreTrainedModel"]}
    with pytest.raises(UnknownNameError, match="unknown architecture 'BertPreTrainedModel'"):
        build_from_config(config, task=None, dtype="float32")


@pytest.mark.parametrize(
    "module",
    [torch.nn.LazyLinear(3), torch.nn.Sequential(torch.nn.LazyBatchNorm1d(affine=False))],
    ids=["parameter", "buffer"],
)
def test_a_lazy_module_is_asked_to_run_once(module):
    with pytest.raises(ModelError, match=r"(weight|0.running_mean) has no shape yet") as error:
        table_from_module(module)
    assert "Run one forward" in str(error.value)


def test_a_lazy_module_that_has_run_has_a_table():
    module = torch.nn.LazyLinear(3)
    module(torch.zeros(2, 5))
    assert table_from_module(module).num_parameters == 3 * 5 + 3


def test_what_an_import_warns_of_is_silent_and_what_it_raises_is_told(tmp_path):
    (tmp_path / "transformers.py").write_text(
        "import logging, os, warnings\n"
        "warnings.warn('first warning')\n"
        "logging.getLogger('torchao').warning('second warning')\n"
        "PreTrainedModel = int(os.environ['NUMBER'])\n"
        "__version__ = '5.24'\n"
        "CONFIG_MAPPING = {}\n"
    )
    script = (
        "import logging, sys; sys.path.insert(0, sys.argv[1])\n"
        "import memsim.record.meta as meta\n"
        "try:\n meta.build_from_config({'model_type': 'tea'}, task=None, dtype='float32')\n"
        "except Exception as error:\n print(type(error).__name__, error)\n"
        "logging.getLogger('after').warning('afterwards')\n"
    )
    for number, kind, said in (
        ("1", "UnknownNameError", "tea"),
        ("x", "ModelError", "cannot be imported (invalid lit"),
    ):
        ran = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env=os.environ | {"NUMBER": number},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert ran.stdout.startswith(kind)
        assert said in ran.stdout
        assert ran.stderr == "afterwards\n"
