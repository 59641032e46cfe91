"""Prediction against measurement: what is judged, how, and what it says when it is wrong."""

from dataclasses import replace

import pytest

import memsim
from memsim.comparing import Measurement, compare_run
from memsim.comparison import ComparedModule, ComparedState
from memsim.config import OptimizerConfig, TrainingConfig
from memsim.errors import OutputError, UsageError
from memsim.ledger import Category, Phase
from memsim.model import BufferSpec, ModelSpec, ParameterSpec, ParameterTable
from memsim.prediction import prediction_of_trace, static_prediction
from memsim.step import (
    AllocatorSettings,
    AllocatorStats,
    Holder,
    OutOfMemory,
    Span,
    StepTrace,
    TraceDevice,
    TraceEvent,
)
from memsim.step.requests import block_bytes
from memsim.tensors import TensorSpec

MIB = 2**20
CUDA = AllocatorSettings()
STATS = AllocatorStats(
    peak_requested_bytes=0,
    peak_allocated_bytes=0,
    peak_reserved_bytes=0,
    allocated_bytes=0,
    reserved_bytes=0,
    num_alloc_retries=0,
    num_ooms=0,
)
CPU = TraceDevice(name="cpu", total_bytes=16 * 2**30, compute_capability="", torch_version="2.13.0")

# weight: 100 x 3 float32 = 1200 bytes; bias: 3 float32 = 12 bytes; counts: 2 int64 = 16 bytes
TABLE = ParameterTable(
    parameters=(
        ParameterSpec(name="layers.0.weight", tensor=TensorSpec((100, 3), "float32"), module_class="Linear"),
        ParameterSpec(name="layers.0.bias", tensor=TensorSpec((3,), "float32"), module_class="Linear"),
    ),
    buffers=(BufferSpec(name="counts", tensor=TensorSpec((2,), "int64")),),
)
SPEC = ModelSpec(name="tiny", source="module", task="", model_class="Tiny", dtype="float32", table=TABLE)
SGD = TrainingConfig(optimizer=OptimizerConfig(name="torch.optim.SGD", args={"lr": 0.1, "momentum": 0.9}))
ADAM = TrainingConfig(optimizer=OptimizerConfig(name="torch.optim.AdamW", args={"fused": True}))


class Run:
    """A hand-made trace: storages that live on, each phase in the order in which it is written."""

    def __init__(self):
        self.events, self.spans = [], []
        self.step, self.phase = 1, Phase.LOAD

    def enter(self, step, phase):
        self.step, self.phase = step, phase
        self.spans.append(Span(step=step, phase=phase, event_index=len(self.events)))

    def make(self, category, name, nbytes):
        module = name.rpartition(" of ")[2].rpartition(".")[0]
        holder = Holder(category=category, name=name, module=module)
        self._event("alloc", len(self.events) + 1, nbytes, holder)
        return self.events[-1]

    def drop(self, made):
        for action in ("free_requested", "free_completed"):
            self._event(action, made.address, made.nbytes, made.holder)

    def _event(self, action, address, nbytes, holder):
        self.events.append(
            TraceEvent(
                action=action,
                address=address,
                nbytes=nbytes,
                stream=0,
                step=self.step,
                phase=self.phase,
                holder=holder,
            )
        )

    def measurement(self, **more):
        trace = StepTrace(
            device=CPU,
            settings=AllocatorSettings(),
            stats=STATS,
            spans=tuple(self.spans),
            events=tuple(self.events),
        )
        return Measurement(**{"trace": trace, "device": "cpu", "loop": "own", "num_steps": 1, **more})


def sgd_run(momentum_bytes=1200):
    """One step with SGD and momentum, as a CPU takes it: momentum_buffer is a clone of the gradient."""
    run = Run()
    run.enter(1, Phase.LOAD)
    for name, nbytes in (("layers.0.weight", 1200), ("layers.0.bias", 12)):
        run.make(Category.PARAMETER, name, nbytes)
    run.make(Category.BUFFER, "counts", 16)
    run.enter(1, Phase.FORWARD)
    kept = run.make(Category.ACTIVATION, "", 5000)
    run.enter(1, Phase.BACKWARD)
    for name, nbytes in (("layers.0.weight", 1200), ("layers.0.bias", 12)):
        run.make(Category.GRADIENT, name, nbytes)
    run.drop(kept)
    run.enter(1, Phase.OPTIMIZER_STEP)
    run.make(Category.OPTIMIZER_STATE, "momentum_buffer of layers.0.weight", momentum_bytes)
    run.make(Category.OPTIMIZER_STATE, "momentum_buffer of layers.0.bias", 12)
    return run


def judged(comparison):
    return {
        (r.phase.value, r.moment, r.category.value): (r.predicted_bytes, r.measured_bytes) for r in comparison.judged
    }


def test_a_tensor_takes_a_block_on_cuda_and_itself_on_the_cpu():
    assert [block_bytes(n, CUDA) for n in (0, 1, 512, 513, 3 * MIB)] == [0, 512, 512, 1024, 3 * MIB]
    assert [block_bytes(n, None) for n in (0, 1, 513)] == [0, 1, 513]


def test_what_follows_from_shapes_is_held_against_a_cpu_run_to_the_byte():
    comparison = compare_run(static_prediction(SPEC, SGD, num_steps=1), sgd_run().measurement())
    static = {"parameter": (1212, 1212), "buffer": (16, 16), "gradient": (1212, 1212)}
    assert judged(comparison) == {
        ("load", "end", "parameter"): (1212, 1212),
        ("load", "end", "buffer"): (16, 16),
        **{("backward", "end", name): value for name, value in static.items()},
        **{("optimizer_step", moment, name): value for moment in ("peak", "end") for name, value in static.items()},
        ("optimizer_step", "peak", "optimizer_state"): (1212, 1212),
        ("optimizer_step", "end", "optimizer_state"): (1212, 1212),
    }
    assert comparison.passed
    assert comparison.verdict == "All 13 predicted figures are within 1% of what was measured."
    assert comparison.optimizer_state == (
        ComparedState(name="momentum_buffer", predicted_bytes=1212, measured_bytes=1212),
    )
    assert (comparison.modules, comparison.wrong, comparison.peak.measured_bytes) == ((), (), 1212 + 16 + 5000 + 1212)


def test_on_cuda_every_tensor_is_rounded_to_a_block():
    # weight 1200 -> 1536, bias 12 -> 512, counts 16 -> 512; fused AdamW: exp_avg, exp_avg_sq and a step per parameter.
    first = static_prediction(SPEC, ADAM, num_steps=1, settings=CUDA).phases[-1]
    assert first.end == {
        Category.PARAMETER: 2048,
        Category.BUFFER: 512,
        Category.GRADIENT: 2048,
        Category.OPTIMIZER_STATE: 2 * 2048 + 2 * 512,
    }
    on_cpu = static_prediction(SPEC, ADAM, num_steps=1)
    assert on_cpu.phases[-1].end[Category.OPTIMIZER_STATE] == 2 * 1212 + 2 * 4
    assert on_cpu.optimizer_state == {"step": 8, "exp_avg": 1212, "exp_avg_sq": 1212}


def test_a_step_on_the_host_is_in_no_cuda_figure():
    config = TrainingConfig(optimizer=OptimizerConfig(name="torch.optim.AdamW", args={"foreach": True}))
    cuda = static_prediction(SPEC, config, settings=CUDA)
    assert cuda.optimizer_state == {"exp_avg": 1212, "exp_avg_sq": 1212}
    assert static_prediction(SPEC, config).optimizer_state["step"] == 8


def test_clipping_counts_for_the_peak_of_the_optimizer_step():
    # The CPU's norms: one float32 each, then their stack of two, then the total: 4 + 4 + 8 + 4 bytes at once.
    config = replace(SGD, max_grad_norm=1.0)
    with_clip = static_prediction(SPEC, replace(config, optimizer=OptimizerConfig(name="torch.optim.SGD")), num_steps=1)
    assert with_clip.phases[-1].peak[Category.TEMPORARY] == 20
    trainer = replace(config, max_grad_norm=None, loop="trainer", optimizer=OptimizerConfig(name="torch.optim.SGD"))
    assert static_prediction(SPEC, trainer, num_steps=1).phases[-1].peak[Category.TEMPORARY] == 20


def test_a_wrong_prediction_is_found_and_the_wrong_category_named():
    comparison = compare_run(static_prediction(SPEC, SGD, num_steps=1), sgd_run(momentum_bytes=600).measurement())
    assert not comparison.passed
    assert comparison.wrong_categories == (Category.OPTIMIZER_STATE,)
    assert comparison.verdict == (
        "Outside 1%: optimizer_state at the peak of optimizer_step in step 1 "
        "(predicted 1.18 KiB, measured 612 B, +600 bytes)."
    )
    worst = comparison.worst
    assert (worst.category, worst.difference_bytes, worst.error) == (Category.OPTIMIZER_STATE, 600, 600 / 612)
    assert comparison.modules == (
        ComparedModule(module="layers.*", category=Category.OPTIMIZER_STATE, predicted_bytes=1212, measured_bytes=612),
    )


def test_the_tolerance_is_a_share_of_a_static_category_and_of_all_for_what_a_step_makes():
    real = sgd_run().measurement()
    prediction = prediction_of_trace(real.trace, model="tiny", config=SGD)
    assert compare_run(prediction, real, tolerance=0).passed
    more = sgd_run()
    more.make(Category.TEMPORARY, "", 30)  # 30 of 3698 bytes at the end of the step is 0.8 %
    assert compare_run(prediction, more.measurement(), tolerance=0.01).passed
    assert compare_run(prediction, more.measurement(), tolerance=0.005).wrong_categories == (Category.TEMPORARY,)
    state = sgd_run(momentum_bytes=1208)  # 8 of 1220 bytes of state are 0.66 %, of all that is there 0.2 %
    assert compare_run(prediction, state.measurement(), tolerance=0.01).passed
    assert compare_run(prediction, state.measurement(), tolerance=0.005).wrong_categories == (Category.OPTIMIZER_STATE,)


def test_a_wrong_peak_alone_does_not_pass():
    real = sgd_run().measurement()
    prediction = replace(prediction_of_trace(real.trace, model="tiny", config=SGD), peak_allocated_bytes=9000)
    comparison = compare_run(prediction, real)
    assert (comparison.wrong, comparison.passed) == ((), False)
    assert "the peak (predicted 8.79 KiB, measured 7.27 KiB, +1,560 bytes)" in comparison.verdict


def test_nothing_predicted_is_no_pass():
    prediction = replace(static_prediction(SPEC, SGD, num_steps=1), phases=())
    comparison = compare_run(prediction, sgd_run().measurement())
    assert (comparison.passed, comparison.verdict) == (False, "Nothing was predicted, so nothing was judged.")


def out_of_memory_run():
    run = Run()
    run.enter(1, Phase.LOAD)
    run.make(Category.PARAMETER, "layers.0.weight", 1200)
    run.make(Category.PARAMETER, "layers.0.bias", 12)
    run.make(Category.BUFFER, "counts", 16)
    run.enter(1, Phase.BACKWARD)
    oom = OutOfMemory(
        asked_bytes=1200,
        total_bytes=2000,
        free_bytes=700,
        allocated_bytes=1228,
        reserved_bytes=1228,
        step=1,
        phase=Phase.BACKWARD,
        module="",
        line="",
        library_line="",
    )
    return run.measurement(oom=oom, num_steps=0)


def test_out_of_memory_is_a_result_and_the_phase_that_it_ended_is_not_judged():
    comparison = compare_run(static_prediction(SPEC, SGD), out_of_memory_run())
    assert set(judged(comparison)) == {("load", "end", "parameter"), ("load", "end", "buffer")}
    assert not comparison.passed
    assert comparison.verdict == "It ran out of memory in step 1, backward; a peak was not predicted."


@pytest.mark.parametrize(("predicted", "passes"), [(17 * 2**30, True), (15 * 2**30, False)])
def test_running_out_of_memory_passes_where_the_prediction_does_not_fit_the_device(predicted, passes):
    prediction = replace(static_prediction(SPEC, SGD), peak_allocated_bytes=predicted)
    assert compare_run(prediction, out_of_memory_run()).passed is passes


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf"), "1%", True])
def test_a_tolerance_that_is_no_fraction_is_refused(tolerance):
    with pytest.raises(UsageError, match="tolerance must be a fraction"):
        compare_run(static_prediction(SPEC, SGD), sgd_run().measurement(), tolerance=tolerance)


@pytest.mark.parametrize("run", [sgd_run().measurement(versions={"torch": "2.13.0"}), out_of_memory_run()])
def test_it_saves_loads_and_becomes_a_frame(run, tmp_path):
    comparison = compare_run(static_prediction(SPEC, SGD), run)
    comparison.save(tmp_path / "comparison.json")
    assert memsim.load(tmp_path / "comparison.json") == comparison
    data = comparison.to_dict()
    assert {"schema", "device", "loop", "versions", "rows", "peak", "optimizer_state", "tolerance", "passed"} <= set(
        data
    )
    assert {"step", "phase", "category", "predicted_bytes", "measured_bytes"} <= set(data["rows"][0])
    assert {"predicted_bytes", "measured_bytes", "error"} <= set(data["peak"])
    frame = comparison.to_frame()
    assert list(frame["measured_bytes"]) == [row.measured_bytes for row in comparison.rows]


def test_without_its_events_it_says_how_to_get_them(tmp_path):
    comparison = replace(compare_run(static_prediction(SPEC, SGD), sgd_run().measurement()), trace=None)
    comparison.save(tmp_path / "comparison.json")
    with pytest.raises(OutputError, match="saved without its events"):
        memsim.load(tmp_path / "comparison.json").whole_trace()


def test_keys_that_are_wrong_the_opposite_way_do_not_pass():
    prediction = static_prediction(SPEC, SGD, num_steps=1)
    swapped = replace(prediction, optimizer_state={"momentum_buffer": 1000, "exp_avg": 212})
    comparison = compare_run(swapped, sgd_run().measurement())
    assert (comparison.wrong, comparison.passed) == ((), False)
    assert comparison.wrong_categories == (Category.OPTIMIZER_STATE,)
    assert comparison.verdict == (
        "Outside 1%: optimizer state 'momentum_buffer' (predicted 1000 B, measured 1.18 KiB, -212 bytes); "
        "optimizer state 'exp_avg' (predicted 212 B, measured 0 B, +212 bytes)."
    )
