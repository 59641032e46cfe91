"""Models without weights: the same as real ones in every tensor, and placed byte for byte as `.to(device)` places."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="models are real")
transformers = pytest.importorskip("transformers", reason="models are real")

from gpu_fixture import installation, on_gpu  # noqa: E402, F401
from tiny_models import MODELS, config_of  # noqa: E402

from memsim.config import TASKS, TrainingConfig  # noqa: E402
from memsim.errors import ModelError, UsageError  # noqa: E402
from memsim.record.meta import table_from_module  # noqa: E402
from memsim.record.training.build import build_model, place  # noqa: E402


def training(name, **options):
    return TrainingConfig(**{"task": MODELS[name].task, "dtype": "float32", **options})


def real_model(name):
    config = transformers.CONFIG_MAPPING[config_of(name)["model_type"]].from_dict(config_of(name))
    config.architectures = []
    return getattr(transformers, TASKS[MODELS[name].task]).from_config(config)


def values(tensors):
    return {name: tensor for name, tensor in tensors if not tensor.is_floating_point()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_weights_has_the_tensors_of_a_real_one_and_its_masks_and_positions(name):
    real, model = real_model(name), build_model(config_of(name), training(name))
    assert type(model) is type(real)
    assert table_from_module(model) == table_from_module(real)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert model.training
    here, there = values(model.named_buffers()), values(real.named_buffers())
    assert all(torch.equal(here[key], there[key]) for key in there)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["t5", "rwkv", "llama", "swin", "mixtral"])
def test_dtypes_are_those_that_from_pretrained_gives(name, dtype, tmp_path):
    real = real_model(name)
    real.save_pretrained(tmp_path)
    loaded = type(real).from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    assert table_from_module(build_model(config_of(name), training(name, dtype=dtype))) == table_from_module(loaded)


@pytest.mark.parametrize("name", ["gpt2", "swin", "wav2vec2", "clip"])
def test_buffers_that_are_computed_are_computed(name):
    """Those that hold sizes and indices: any of them on the meta device would fail in a forward."""
    model = build_model(config_of(name), training(name))
    tensors = [
        value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)
    ]
    assert not any(tensor.is_meta for tensor in [*model.buffers(), *tensors])


def test_a_placed_model_has_its_ties_and_its_own_parameter_objects():
    model = build_model(config_of("gpt2"), training("gpt2"))
    before = dict(model.named_parameters())
    placed = place(model, "cpu", weights="random")
    assert placed.lm_head.weight is placed.transformer.wte.weight
    assert all(parameter is before[name] for name, parameter in placed.named_parameters())
    assert 0.01 < placed.transformer.wte.weight.std() < 0.03


def test_405_thousand_million_parameters_are_built_within_a_gibibyte():
    script = (
        "import json; from memsim import catalog; from memsim.config import TrainingConfig\n"
        "from memsim.record.training.build import build_model\n"
        "import transformers, torch; torch.zeros(1)\n"
        "config = dict(catalog.find('meta-llama/Llama-3.1-405B').config)\n"
        "model = build_model(config, TrainingConfig(dtype='bfloat16'))\n"
        "line = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "rss = int(line.split()[1]) * 1024\n"  # ru_maxrss would begin at what the parent holds
        "print(json.dumps([sum(p.numel() for p in model.parameters()), rss]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    num_parameters, rss = json.loads(ran.stdout.splitlines()[-1])
    # Embedding and head of 128,256 x 16,384; 126 layers of queries and output 16,384 x 16,384, keys and values
    # 16,384 x 1,024, three matrices of the MLP 16,384 x 53,248 and two norms; a last norm.
    layer = 2 * 16_384**2 + 2 * 16_384 * 1_024 + 3 * 16_384 * 53_248 + 2 * 16_384
    assert num_parameters == 2 * 128_256 * 16_384 + 126 * layer + 16_384
    assert rss < 2**30


PLACE = """
import sys
from memsim import catalog
from memsim.config import TrainingConfig
from memsim.record.training.build import build_model, place

MODELS = [
    ("distilbert/distilbert-base-cased", {"n_layers": 1}, "bfloat16"),
    ("openai-community/gpt2", {"n_layer": 1}, "float32"),
    ("google-t5/t5-base", {"num_layers": 1}, "float16"),
    ("facebook/hubert-base-ls960", {"num_hidden_layers": 2}, "float32"),
    ("microsoft/swin-base-patch4-window7-224", {"depths": [1, 1, 1, 1]}, "float32"),
    ("microsoft/resnet-50", {}, "float32"),
]
REAL = sys.argv[1] == "real"

def placed(model):
    return model.to("cuda") if REAL else place(model, "cuda")

def lstm():
    with torch.device("cpu" if REAL else "meta"):
        return torch.nn.Sequential(torch.nn.LSTM(8, 16, 2), torch.nn.BatchNorm1d(3))

torch.cuda.init()
torch.cuda.memory._record_memory_history("all", context=None)
models, addresses = [placed(lstm())], []
for name, changes, dtype in MODELS:
    config = {**catalog.find(name).config, **changes}
    models.append(placed(build_model(config, TrainingConfig(dtype=dtype), weights="real" if REAL else "meta")))
for model in models:
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        addresses.append([name, tensor.data_ptr(), list(tensor.stride()), str(tensor.dtype)])
events = [[e["action"], e["size"], e["addr"]] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
print(json.dumps([addresses, events]))
"""


def test_a_placed_model_lies_where_to_device_puts_a_real_one(on_gpu):  # noqa: F811
    real, ours = (on_gpu(f"import sys; sys.argv.append({kind!r})\n{PLACE}") for kind in ("real", "without weights"))
    assert len(real[0]) > 400
    assert ours[0] == real[0]
    assert ours[1] == real[1]


def test_frozen_parameters_are_those_that_the_patterns_cover():
    model = build_model(config_of("llama"), training("llama", freeze=("model.embed_tokens", "*.layers.0.*")))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    expected = {name for name, _ in model.named_parameters() if "embed_tokens" in name or ".layers.0." in name}
    assert frozen == expected
    assert len(frozen) == 10


def test_checkpointed_layers_run_again_in_backward():
    for recompute, times in ((False, 1), (True, 2)):
        asked = training("llama", activation_checkpointing=recompute)
        model = build_model(config_of("llama"), asked, weights="real")
        calls = []
        model.model.layers[0].self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        ids = torch.ones(1, 4, dtype=torch.long)
        model(input_ids=ids, labels=ids).loss.backward()
        assert len(calls) == times


def test_a_model_that_cannot_recompute_says_so():
    with pytest.raises(ModelError, match="ResNetForImageClassification cannot recompute its activations"):
        build_model(config_of("resnet"), training("resnet", activation_checkpointing=True))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_attention_is_the_asked_one(implementation):
    model = build_model(config_of("llama"), training("llama", attn_implementation=implementation))
    assert model.config._attn_implementation == implementation


def test_an_attention_that_is_not_there_is_an_error_of_a_few_lines():
    with pytest.raises(ModelError, match="llama cannot use attn_implementation='flash_attention_2'") as raised:
        build_model(config_of("llama"), training("llama", attn_implementation="flash_attention_2"))
    assert len(str(raised.value).splitlines()) <= 3


def test_every_layer_runs_although_speech_models_leave_some_out():
    model = build_model(config_of("wav2vec2"), training("wav2vec2"))
    assert transformers.Wav2Vec2Config().layerdrop == 0.1
    assert model.config.layerdrop == 0.0


def test_a_model_needs_a_dtype():
    with pytest.raises(UsageError, match="not in 'auto'"):
        build_model(config_of("llama"), TrainingConfig())
