"""The names an optimizer is found by."""

import pytest

from memsim.errors import UnknownNameError
from memsim.optimizers import resolve_optimizer, rules


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("transformers.Adafactor", "transformers.optimization.Adafactor"),
        ("torch.optim.adamw.AdamW", "torch.optim.AdamW"),
        ("bitsandbytes.optim.adamw.AdamW8bit", "bitsandbytes.optim.AdamW8bit"),
        ("AdamW", "torch.optim.AdamW"),
        ("adamw_torch_fused", "torch.optim.AdamW"),
    ],
)
def test_a_class_is_found_by_every_way_to_import_it(given, meant):
    assert resolve_optimizer(given).rule.class_path == meant


@pytest.mark.parametrize("given", ["transformers.AdamW", "nowhere.AdamW", ".AdamW", "torch.optim.Adamw2", ""])
def test_a_class_that_is_not_known_is_never_taken_for_another(given):
    with pytest.raises(UnknownNameError):
        resolve_optimizer(given)


def test_every_rule_names_its_package_version_and_source():
    for class_path, rule in rules().items():
        assert rule.package, class_path
        assert rule.version, class_path
        assert rule.source, class_path
