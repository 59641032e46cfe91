"""Every optimizer answers over real models, or refuses in our own words; none breaks."""

import pytest

import memsim
from memsim.optimizers import names, rules


@pytest.mark.parametrize("model", ["openai-community/gpt2", "microsoft/resnet-50", "openai/whisper-tiny"])
def test_every_name_and_class_gives_figures_or_one_of_our_errors(model):
    answered = 0
    for name in (*names(), *rules()):
        try:
            estimate = memsim.estimate(model, optimizer=name, dtype="bfloat16")
        except memsim.MemsimError:
            continue
        answered += 1
        assert estimate.static.device_bytes >= 0
        if estimate.optimizer_step is not None:
            assert estimate.optimizer_step.first_step_peak_bytes >= 0
            assert estimate.optimizer_step.later_step_peak_bytes >= 0
        else:
            assert any(f"{name}.step()" in gap.what for gap in estimate.unmodeled)
    assert answered > 250
