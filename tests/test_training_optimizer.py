"""Real optimizers from their names: the class that the rule describes, over the parameters that it describes."""

import importlib
import importlib.metadata

import pytest

torch = pytest.importorskip("torch", reason="optimizers are real")
pytest.importorskip("transformers", reason="optimizers are real")

from tiny_models import MODELS, config_of  # noqa: E402

from memsim.config import OptimizerConfig, ParameterGroup, TrainingConfig  # noqa: E402
from memsim.errors import MissingPackageError, UsageError  # noqa: E402
from memsim.optimizers import resolve_optimizer, rules  # noqa: E402
from memsim.record.training.build import build_model  # noqa: E402
from memsim.record.training.optimizer import Optimizers, build_optimizer  # noqa: E402

NOT_OVER_A_WHOLE_MODEL = {
    "torch.optim.Muon": "only supports 2D parameters",
    "lomo_optim.AdaLomo": "Torch not compiled with CUDA",  # its constructor calls .cuda()
    "pytorch_optimizer.DistributedMuon": "process group has not been initialized",
    "torchao.optim.CPUOffloadOptimizer": "only supports CUDA",
}
"""What the real constructors say here, on a machine without a GPU."""
BUILT_INTO_OTHERS = {"Muon+AdamW", "none"}


@pytest.fixture(scope="module")
def model():
    asked = TrainingConfig(task=MODELS["llama"].task, dtype="float32")
    return build_model(config_of("llama"), asked, weights="real")


def installed(path):
    rule = rules()[path]
    try:
        importlib.metadata.version(rule.package)
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)
    except (importlib.metadata.PackageNotFoundError, ImportError, AttributeError):
        return None


@pytest.mark.parametrize("package", sorted({rule.package for rule in rules().values()} - {"memsim", "-"}))
@pytest.mark.filterwarnings("ignore")
def test_every_class_of_a_package_is_built_over_a_whole_model(package, model):
    paths = [path for path, rule in rules().items() if rule.package == package and path not in BUILT_INTO_OTHERS]
    real = {path: cls for path in paths if (cls := installed(path)) is not None}
    if not real:
        pytest.skip(f"{package} is not installed")
    for path, cls in real.items():
        if path in NOT_OVER_A_WHOLE_MODEL:
            with pytest.raises(UsageError, match=NOT_OVER_A_WHOLE_MODEL[path]):
                build_optimizer(model, OptimizerConfig(name=path))
            continue
        optimizer = build_optimizer(model, OptimizerConfig(name=path))
        assert type(optimizer) is cls, path
        held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        assert sorted(held) == sorted(id(parameter) for parameter in model.parameters()), path


@pytest.mark.parametrize("name", ["adamw_torch_fused", "adafactor", "paged_adamw_8bit", "rmsprop", "sgd"])
def test_a_name_stands_for_a_class_with_the_arguments_of_its_rule(name, model):
    optimizer = build_optimizer(model, OptimizerConfig(name=name))
    resolved = resolve_optimizer(name)
    assert f"{type(optimizer).__module__}.{type(optimizer).__name__}".split(".")[0] == resolved.rule.package
    assert type(optimizer).__name__ == resolved.rule.class_path.rpartition(".")[2]
    group = optimizer.param_groups[0]
    assert {key: group[key] for key in group if key in resolved.args} == {
        key: resolved.args[key] for key in group if key in resolved.args
    }


def test_arguments_and_the_form_of_the_step_arrive(model):
    config = OptimizerConfig(name="torch.optim.AdamW", args={"amsgrad": True, "betas": (0.8, 0.9)}, impl="for-loop")
    group = build_optimizer(model, config).param_groups[0]
    assert (group["amsgrad"], group["betas"], group["foreach"], group["fused"]) == (True, (0.8, 0.9), False, False)


def test_groups_of_one_class_are_groups_of_one_optimizer(model):
    half = ParameterGroup(patterns=("model.layers.0",), args={"lr": 0.5})
    optimizer = build_optimizer(model, OptimizerConfig(name="torch.optim.SGD", groups=(half,)))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1e-3]
    first = {id(parameter) for parameter in model.model.layers[0].parameters()}
    assert {id(parameter) for parameter in optimizer.param_groups[0]["params"]} == first


def test_another_class_is_an_optimizer_of_its_own_and_none_is_none(model):
    groups = (
        ParameterGroup(patterns=("model.layers.0",), optimizer="torch.optim.SGD"),
        ParameterGroup(patterns=("lm_head",), optimizer="none"),
    )
    both = build_optimizer(model, OptimizerConfig(name="torch.optim.AdamW", groups=groups))
    assert isinstance(both, Optimizers)
    assert [type(member) for member in both.members] == [torch.optim.SGD, torch.optim.AdamW]
    held = {id(parameter) for group in both.param_groups for parameter in group["params"]}
    assert id(model.lm_head.weight) not in held
    assert build_optimizer(model, OptimizerConfig(name="none")) is None


def test_muon_with_adamw_takes_hidden_matrices_apart(model):
    muon, adamw = build_optimizer(model, OptimizerConfig(name="muon")).members
    hidden = {id(p) for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name}
    assert {id(p) for group in muon.param_groups for p in group["params"]} == hidden
    assert len(adamw.param_groups[0]["params"]) == len(list(model.parameters())) - len(hidden)


def test_galore_projects_the_linear_layers_and_nothing_else(model):
    pytest.importorskip("galore_torch")
    rest, projected = build_optimizer(model, OptimizerConfig(name="galore_adamw")).param_groups
    linear = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    assert {id(parameter) for parameter in projected["params"]} == linear
    assert (projected["rank"], projected["update_proj_gap"]) == (128, 200)
    assert "rank" not in rest


def test_a_package_that_is_not_there_is_named(model):
    with pytest.raises(MissingPackageError, match=r"deepspeed\.ops\.adam\.FusedAdam cannot be imported .*pip install"):
        build_optimizer(model, OptimizerConfig(name="deepspeed.ops.adam.FusedAdam"))
