"""A composed step: by arithmetic for a small one, and against the count of PyTorch's own allocator."""

from dataclasses import replace

import pytest
from gpu_fixture import installation  # noqa: F401
from simulated_step import KIB, MIB, RECORDED, sections, spec

from memsim.allocator import AllocatorConfig
from memsim.config import OptimizerConfig, ParameterGroup, TrainingConfig
from memsim.errors import MemsimError
from memsim.gpus import find_gpu
from memsim.ledger import Category, Phase
from memsim.optimizers import assign, assign_in_loop
from memsim.record.job import RecordJob
from memsim.record.meta import build_from_config
from memsim.record.recorder import Recorder
from memsim.resolve import resolve
from memsim.simulation import compose, replay
from memsim.simulation.script import EMPTY_CACHE
from memsim.step import TraceDevice
from memsim.step.cut import sections_of
from memsim.step.peaks import occupancy
from memsim.step.section import SectionEvent
from memsim.whole_step import whole_step

W = 4 * MIB
DEVICE = TraceDevice(name="any", total_bytes=2**40, compute_capability="8.0", torch_version="2.13.0")


def script(num_steps=2, **options):
    config = TrainingConfig(**{"optimizer": OptimizerConfig(name="torch.optim.SGD", impl="for-loop"), **options})
    return compose(sections(), assign(config.optimizer, spec().table), config, num_steps=num_steps)


def sizes(of, phase=None, step=None):
    """Return the requests of the phases asked for: bytes asked, or minus the bytes let go."""
    asked = {request.key: request.nbytes for request in of.requests if request.nbytes}
    ends = [*(span.event_index for span in of.spans[1:]), len(of.requests)]
    return [
        request.nbytes or -asked.get(request.key, 0)
        for span, end in zip(of.spans, ends, strict=True)
        if phase in (None, span.phase) and step in (None, span.step)
        for request in of.requests[span.event_index : end]
    ]


def test_a_step_is_loading_forward_backward_the_optimizers_step_and_zero_grad_in_this_order():
    phases = [(span.step, span.phase) for span in script().spans]
    one = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.ZERO_GRAD]
    assert phases == [(1, Phase.LOAD), *((1, phase) for phase in one), *((2, phase) for phase in one)]
    assert sizes(script(), Phase.LOAD) == [W]
    assert sizes(script(), Phase.FORWARD, 1) == [2 * KIB, 6 * MIB]
    assert sizes(script(), Phase.BACKWARD, 1) == [W, -6 * MIB, -2 * KIB]
    assert sizes(script(), Phase.ZERO_GRAD, 1) == [-W]


def test_the_peak_of_a_small_step_is_the_sum_of_what_lives_in_its_backward():
    found = replay(script(), DEVICE, AllocatorConfig())
    # w, the batch, the activation and w's gradient; blocks of 4 and 6 MiB are cut from segments of 20 MiB, and the
    # batch of 2 KiB from one of 2 MiB.
    assert found.peak.requested_bytes == W + 2 * KIB + 6 * MIB + W
    assert found.peak.allocated_bytes == W + 2 * KIB + 6 * MIB + W
    assert found.peak.reserved_bytes == 20 * MIB + 2 * MIB
    assert (found.peak.step, found.peak.phase) == (1, Phase.BACKWARD)
    assert found.peak.by_category == {"activation": 6 * MIB, "parameter": W, "gradient": W, "input": 2 * KIB}
    assert found.held.allocated_bytes == sum(found.peak.by_category.values())


def test_adam_creates_its_state_in_the_first_step_and_its_temporaries_in_every_step():
    optimizer = OptimizerConfig(name="torch.optim.AdamW", impl="foreach")
    # exp_avg, exp_avg_sq (step is on the host), then exp_avg_sq.sqrt()
    assert sizes(script(optimizer=optimizer), Phase.OPTIMIZER_STEP, 1) == [W, W, W, -W]
    assert sizes(script(optimizer=optimizer), Phase.OPTIMIZER_STEP, 2) == [W, -W]


def test_state_that_a_constructor_makes_is_there_before_the_first_step():
    optimizer = OptimizerConfig(name="torch.optim.Adagrad", impl="for-loop")
    assert sizes(script(optimizer=optimizer), Phase.LOAD) == [W, W]


def test_micro_batches_repeat_forward_and_backward_before_one_optimizer_step():
    found = script(num_steps=1, gradient_accumulation_steps=3)
    phases = [span.phase for span in found.spans]
    assert phases.count(Phase.FORWARD) == phases.count(Phase.BACKWARD) == 3
    assert phases.count(Phase.OPTIMIZER_STEP) == 1


def test_gradients_that_are_zeroed_and_kept_are_not_let_go():
    kept = script(zero_grad_set_to_none=False)
    assert sizes(kept, Phase.ZERO_GRAD) == []
    assert sizes(script(), Phase.ZERO_GRAD) == [-W, -W]


def test_the_trainers_empty_cache_steps_empty_the_cache_before_backward_of_every_nth_step():
    found = script(num_steps=4, empty_cache_steps=2)
    places = [index for index, request in enumerate(found.requests) if request.key == EMPTY_CACHE]
    begins = {span.event_index: span.step for span in found.spans if span.phase is Phase.BACKWARD}
    # global_step counts from 0: 0 and 2 are multiples of 2, which are the first and the third step.
    assert [begins[place + 1] for place in places] == [1, 3]


def test_a_section_that_lets_go_of_something_unknown_is_refused():
    broken = sections()
    free = SectionEvent("free", -1, 0, Phase.FORWARD, None, "loss:0")
    broken["first"] = replace(broken["first"], events=(free,))
    config = TrainingConfig(optimizer=OptimizerConfig(name="torch.optim.SGD"))
    with pytest.raises(MemsimError, match="'loss:0', which nothing before it left"):
        compose(broken, assign(config.optimizer, spec().table), config)


def test_an_optimizer_whose_step_is_not_known_still_has_its_state():
    optimizer = OptimizerConfig(name="torchao.optim.AdamW8bit")
    config = TrainingConfig(optimizer=optimizer)
    parts = assign(optimizer, spec().table)
    found = replay(compose(sections(), parts, config), DEVICE, AllocatorConfig())
    last = next(phase for phase in reversed(found.phases) if phase.phase is Phase.OPTIMIZER_STEP)
    # 1024 * 1024 elements in two states: one byte each, a float32 scale per 256 elements, and a map of 256 float32.
    state = 2 * (1024 * 1024 + 1024 * 1024 // 256 * 4) + 2 * 256 * 4
    assert last.end_by_category["optimizer_state"] == state


def test_memory_that_runs_out_ends_the_step_and_says_where():
    tight = replace(DEVICE, total_bytes=22 * MIB)
    # A segment of 20 MiB for w, the activation and the gradient, one of 2 MiB for the batch; 30 MiB more do not fit.
    large = compose(sections(30 * MIB), assign(OptimizerConfig(name="torch.optim.SGD"), spec().table), TrainingConfig())
    found = replay(large, tight, AllocatorConfig())
    assert found.oom is not None
    assert (found.oom.step, found.oom.phase, found.oom.module) == (1, Phase.FORWARD, "layer")
    assert found.oom.asked_bytes == 30 * MIB
    assert found.held.moment == "out_of_memory"
    assert replay(script(), tight, AllocatorConfig()).oom is None


def test_memory_that_does_not_suffice_for_the_first_request_is_a_timeline_of_one_event():
    found = replay(script(), replace(DEVICE, total_bytes=2 * MIB), AllocatorConfig(), keep_events=True)
    assert found.oom is not None
    assert found.trace is not None
    assert [event.action for event in found.trace.events] == ["oom"]
    assert occupancy(found.trace).peak_allocated_bytes == 0


def test_a_step_that_does_not_fit_says_how_much_is_missing():
    config = TrainingConfig(gpu="256MiB", optimizer=OptimizerConfig(name="torch.optim.SGD"))
    parts = assign(config.optimizer, spec().table)
    # The usual CUDA context takes 400 MiB, so nothing fits: it, 20 MiB and 2 MiB are needed.
    step = whole_step(sections(), parts, config, RECORDED)
    assert step.fit is not None
    assert not step.fit.fits
    assert step.fit.needed_bytes == 400 * MIB + 20 * MIB + 2 * MIB
    assert step.fit.missing_bytes == step.fit.needed_bytes - 256 * MIB


MODELS = {
    "llama": {"num_key_value_heads": 2, "vocab_size": 3001},
    "gpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 3001},
    "bert": {"vocab_size": 3001},
    "t5": {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 3001},
}
SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
TASKS = {"llama": "causal-lm", "gpt2": "causal-lm", "bert": "masked-lm", "t5": "seq2seq-lm"}
TRAININGS = {
    "usual": {},
    "bfloat16": {"dtype": "bfloat16", "max_grad_norm": 1.0},
    "autocast": {"autocast": "bfloat16", "gradient_accumulation_steps": 2},
    "scaled": {"autocast": "float16", "max_grad_norm": 1.0},
    "scaled, fused": {"autocast": "float16", "optimizer": OptimizerConfig(name="adamw_torch_fused")},
    "kept gradients": {"zero_grad_set_to_none": False, "optimizer": OptimizerConfig(name="adafactor")},
    "checkpointing": {"activation_checkpointing": True, "optimizer": OptimizerConfig(name="torch.optim.Adagrad")},
    "Trainer": {"loop": "trainer", "max_grad_norm": 1.0},
    "Accelerate": {"loop": "accelerate", "autocast": "bfloat16", "max_grad_norm": 1.0},
    "8-bit": {"optimizer": OptimizerConfig(name="adamw_bnb_8bit")},
    "two groups": {
        "optimizer": OptimizerConfig(
            name="torch.optim.SGD",
            args={"lr": 0.1, "momentum": 0.9},
            groups=(ParameterGroup(patterns=("*.1.*",), args={"momentum": 0.0}),),
        )
    },
}


@pytest.fixture(scope="module", params=["", "expandable_segments:True"])
def recorder(installation, request):  # noqa: F811 - the fixture
    with Recorder(find_gpu("A100"), alloc_conf=request.param) as worker:
        yield request.param, worker


@pytest.mark.parametrize("family", MODELS)
def test_the_composed_step_has_the_peaks_of_the_real_run(recorder, family):
    alloc_conf, worker = recorder
    config = {**(SMALL if family in {"llama", "bert"} else {}), **MODELS[family], "model_type": family}
    # Each family goes through some of the trainings, so that two families have each of them.
    place = list(MODELS).index(family)
    mine = {name: options for index, (name, options) in enumerate(TRAININGS.items()) if index % 2 == place % 2}
    differing = {}
    for name, options in mine.items():
        usual = {"task": TASKS[family], "dtype": "float32", "batch_size": 2, "seq_len": 48}
        training = TrainingConfig(**{**usual, "optimizer": OptimizerConfig(name="adamw_torch"), **options})
        table = build_from_config(config, task=training.task, dtype=training.dtype).table
        told, counted = peaks(worker, config, training, table, alloc_conf)
        if told != counted:
            differing[name] = (told, counted)
    assert differing == {}


def peaks(worker, config, training, table, alloc_conf):
    """Return the peaks of the composed step and of the real run: requested, allocated and reserved bytes."""
    recorded = worker.record(RecordJob(config=config, training=training))
    real = worker.record(RecordJob(config=config, training=training, kind="run")).trace.stats
    evaluated = {section.name: section for section in sections_of(recorded.trace)}
    parts = assign_in_loop(training.optimizer, table, in_trainer=training.loop == "trainer")
    composed = compose(evaluated, parts, training)
    peak = replay(composed, DEVICE, AllocatorConfig.parse(alloc_conf)).peak
    told = (peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes)
    return told, (real.peak_requested_bytes, real.peak_allocated_bytes, real.peak_reserved_bytes)


def test_temporaries_of_the_optimizer_belong_to_its_phase():
    found = replay(
        script(optimizer=OptimizerConfig(name="torch.optim.AdamW", impl="foreach")), DEVICE, AllocatorConfig()
    )
    (step,) = [p for p in found.phases if (p.step, p.phase) == (2, Phase.OPTIMIZER_STEP)]
    assert step.by_category[Category.TEMPORARY.value] == W
    # 2 KiB of batch and 6 MiB of activation beat the one temporary of 4 MiB, so the peak is in backward.
    assert "in the backward of step 2" in found.why
    assert "1 block of 6.00 MiB, 6.00 MiB (layer MmBackward0)" in found.why


def test_a_catalog_model_is_composed_like_any_other(recorder):
    alloc_conf, worker = recorder
    model = resolve("distilbert-base-cased", task="sequence-classification")
    training = TrainingConfig(
        task=model.task, dtype="float32", batch_size=8, seq_len=128, optimizer=OptimizerConfig(name="adamw_torch")
    )
    told, counted = peaks(worker, dict(model.config), training, model.table, alloc_conf)
    assert told == counted


@pytest.mark.parametrize("family", MODELS)
def test_the_trainers_two_groups_are_those_of_the_real_trainer(family, tmp_path):
    from transformers import Trainer, TrainingArguments

    from memsim.record.training.build import build_model

    config = {**(SMALL if family in {"llama", "bert"} else {}), **MODELS[family], "model_type": family}
    model = build_model(config, TrainingConfig(task=TASKS[family], dtype="float32"), weights="real")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), optim="adamw_torch", weight_decay=0.1, use_cpu=True, report_to=[]
    )
    real = Trainer(model=model, args=arguments).create_optimizer()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [([names[id(p)] for p in group["params"]], group["weight_decay"]) for group in real.param_groups]
    table = build_from_config(config, task=TASKS[family], dtype="float32").table
    optimizer = OptimizerConfig(name="adamw_torch", args={"weight_decay": 0.1})
    parts = assign_in_loop(optimizer, table, in_trainer=True)
    assert [([p.name for p in given], part.args["weight_decay"]) for part, given in parts] == groups
