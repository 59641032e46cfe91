"""From a model to its step program: which points to record, and the proof on one more recording."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from memsim.errors import MemsimError
from memsim.record.depth import ReducedDepth
from memsim.record.job import RecordJob
from memsim.record.recorder import Recorded, Recorder
from memsim.step.cut import sections_of
from memsim.step.fit import Point
from memsim.step.program import LENGTH_PERIOD, StepProgram, difference, regimes_of
from memsim.step.reduction import Processors
from memsim.step.section import Section

USUAL_TOKENS = 2**15
"""Tokens of a batch that a program reaches to, however few were asked for. Up to 2**17 ids have their true values on
the imaginary GPU (memsim/record/watch/values.py), and tensors of 2 GiB, which are worked on in pieces, are rare yet."""
USUAL_LENGTH = 4096
"""Tokens that a program reaches to if the model takes them, however short the sequences are that were asked for."""
USUAL_BATCH = 64
"""Sequences likewise."""
SHORTEST = 16
LONG = (512, 1024, 2048)
"""Lengths at which large batches are recorded, besides the longest."""
FEW = (2, 3, 5, 7)
"""Small batches, without a common factor."""
CHECK_PERIODS = 3
"""Repetitions of layers in the recording that a program is checked against; one more than in the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The batches that a program shall reach."""

    asked: Point
    """The batch that was asked for; `seq_len` 0 where the model takes none."""
    length_limit: int | None
    """Positions of the model; `None`: not known."""

    def lengths(self) -> list[int]:
        """Return the lengths of the class of the one asked for, from the shortest on."""
        asked = self.asked.seq_len
        if not asked:
            return [0]
        longest = max(self.length_limit or USUAL_LENGTH, asked)
        longest = min(longest, max(USUAL_LENGTH, 2 * asked))
        every = range(asked % LENGTH_PERIOD or LENGTH_PERIOD, longest + 1, LENGTH_PERIOD)
        return [length for length in every if length >= min(SHORTEST, asked)]


def points_for(wanted: Range) -> list[Point]:
    """Return the points to record so that most other batches and lengths need no new recording.

    The one asked for comes first. A single sequence is a world of its own (views where there are copies), and so are
    lengths of another class: what is recorded here is for the class of the length asked for. Large batches are recorded
    at several lengths: a point is covered by one that is larger in both, and what is longest may be another world too
    (beyond a sliding window).
    """
    lengths, asked = wanted.lengths(), wanted.asked
    if asked.batch_size == 1:
        few = [*lengths[:3], lengths[len(lengths) // 2], *lengths[-3:]]
        return list(dict.fromkeys([asked, *(Point(1, length) for length in few)]))
    few = [*lengths[:3], asked.seq_len, lengths[-1]]
    points = [asked, *(Point(FEW[index % len(FEW)], length) for index, length in enumerate(few))]
    long = {max(length for length in lengths if length <= max(most, lengths[0])) for most in LONG}
    many = [
        Point(max(min(USUAL_BATCH, USUAL_TOKENS // max(length, 1)), 2), length) for length in {*long, *lengths[-2:]}
    ]
    points += sorted(many)
    if USUAL_BATCH * lengths[-1] <= USUAL_TOKENS:  # short ones, of which only large batches have many tokens
        points += [Point(batch, length) for length in lengths[-2:] for batch in (24, 41)]
    if len(lengths) < len(FEW):
        points += [Point(batch, length) for length in lengths for batch in (3, 12)]
    return list(dict.fromkeys([*points, Point(2, lengths[0]), Point(max(asked.batch_size, 3), lengths[-1])]))


def record_program(job: RecordJob, wanted: Range, recorder: Recorder) -> StepProgram:
    """Record a model at several batch sizes and lengths, and return its program, proved on one more recording.

    Args:
        job: of kind `program`, with the whole model's configuration.
        wanted: what it shall reach.
        recorder: where it is recorded.

    Raises:
        ModelError: the model cannot be built or fails with the batch that was asked for.
        MemsimError: its micro-steps are not alike, or the recorder fails.
    """
    return _Recording(job, recorder, recorder.reduced_depth(job)).program(wanted)


class _Recording:
    """A program in the making."""

    def __init__(self, job: RecordJob, recorder: Recorder, reduced: ReducedDepth | None) -> None:
        self._whole = job
        self._recorder = recorder
        self._reduced = reduced
        self._job = _with(job, reduced)
        self._sections: dict[Point, Sequence[Section]] = {}
        self._last: Recorded | None = None

    def program(self, wanted: Range) -> StepProgram:
        asked = wanted.asked
        self._sections[asked] = self._recorded(self._job, asked)
        wanted = self._reached(wanted)
        self._record(points_for(wanted))
        program = self._made()
        if not any(len(regime.points) > 1 and regime.covers(asked, program.processors) for regime in program.regimes):
            self._record(points_near(wanted))
            program = self._made()
        reason = self._refuted(program, wanted)
        return program if not reason else self._literal(asked, reason)

    def _reached(self, wanted: Range) -> Range:
        """Return the range with a limit that the model takes: not every configuration states one."""
        longest = wanted.lengths()[-1]
        while longest > wanted.asked.seq_len:
            self._record([Point(2, longest)])
            if Point(2, longest) in self._sections:
                break
            wanted = replace(wanted, length_limit=max(longest // 2, wanted.asked.seq_len))
            longest = wanted.lengths()[-1]
        return wanted

    def _record(self, points: Sequence[Point]) -> None:
        """Record at more points, as far as the model takes them."""
        for point in points:
            if point not in self._sections:
                with suppress(MemsimError):  # too long for the model, or too large for any GPU: it reaches less far
                    self._sections[point] = self._recorded(self._job, point)

    def _recorded(self, job: RecordJob, point: Point) -> tuple[Section, ...]:
        training = replace(job.training, batch_size=point.batch_size, seq_len=point.seq_len or None)
        self._last = self._recorder.record(replace(job, training=training))
        if self._last.oom is not None:
            raise MemsimError(f"batch {point.batch_size} x {point.seq_len} needs more than any GPU has.")
        return sections_of(self._last.trace)

    def _made(self) -> StepProgram:
        assert self._last is not None
        gpu = self._recorder.gpu
        processors = Processors(num_multiprocessors=gpu.num_multiprocessors, compute_capability=gpu.capability_text)
        stacks = self._reduced.stacks if self._reduced is not None else ()
        regimes, unexplained = regimes_of(self._sections, processors, {s.prefix: s.period for s in stacks})
        return StepProgram(
            processors=processors,
            regimes=regimes,
            depths={stack.prefix: stack.num_layers for stack in stacks},
            unexplained=unexplained,
            model_class=self._last.model_class,
            versions={
                "torch": self._last.trace.device.torch_version,
                "transformers": self._last.transformers_version,
            },
            notes=(*self._last.assumptions, *self._last.notes),
        )

    def _refuted(self, program: StepProgram, wanted: Range) -> str:
        """Return how one more recording, at another point and depth, differs from the program; empty if it agrees."""
        point = check_point(program, wanted)
        if self._reduced is None:
            job, depths = self._job, {}
        else:
            deeper = self._recorder.reduced_depth(self._whole, num_periods=CHECK_PERIODS)
            if deeper is None:
                return "no other depth of the model can be built"
            job, depths = _with(self._whole, deeper), {stack.prefix: stack.num_left for stack in deeper.stacks}
        return difference(program, point, self._recorded(job, point), depths)

    def _literal(self, asked: Point, reason: str) -> StepProgram:
        """Return the whole model as it was recorded at the batch that was asked for, good for nothing else."""
        self._sections = {asked: self._recorded(self._whole, asked)}
        self._reduced = None
        return replace(self._made(), unexplained=(reason,))


def _with(job: RecordJob, reduced: ReducedDepth | None) -> RecordJob:
    return job if reduced is None else replace(job, config=reduced.config, training=reduced.training)


def check_point(program: StepProgram, wanted: Range) -> Point:
    """Return a point that the program covers and that was not recorded; the one asked for if there is no other."""
    known = {point for regime in program.regimes for point in regime.points}
    asked = wanted.asked
    middle = [
        Point(batch, length)
        for length in (asked.seq_len + LENGTH_PERIOD, asked.seq_len, *wanted.lengths())
        for batch in (asked.batch_size + 2, asked.batch_size + 1, 6, 4, 9, 1)
    ]
    found = (p for p in middle if p not in known and not program.covers(*p))
    return next(found, asked)


def points_near(wanted: Range) -> list[Point]:
    """Return points around the batch that was asked for, for a model that does something else further away."""
    batch, length = wanted.asked
    near = [length, length + LENGTH_PERIOD, length + 2 * LENGTH_PERIOD] if length else [0]
    if wanted.length_limit is not None:
        near = [one for one in near if one <= max(wanted.length_limit, length)]
    if batch == 1:
        return [Point(1, one) for one in (*near, length + 4 * LENGTH_PERIOD)]
    more = (batch, batch + 1, batch + 3, 2 * batch)
    return [Point(b, one) for one in near for b in more]
