"""Makes step programs of catalog models at full size, and holds each against a fresh recording of the whole model.

    python benchmarks/step_programs.py                          30 families x 5 settings
    python benchmarks/step_programs.py --family llama --setting bf16

The recording is at a batch size and length that the program was not made of, and of all layers. Printed are the
recordings that share one set of rules, the seconds, and the first event that differs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from imaginary_gpu_families import FAMILIES, Family

from memsim import catalog
from memsim.config import TrainingConfig
from memsim.errors import MemsimError
from memsim.gpus import find_gpu
from memsim.record.job import RecordJob
from memsim.record.program import Range, record_program
from memsim.record.recorder import Recorder
from memsim.record.training.lengths import POSITION_KEYS
from memsim.step.cut import sections_of
from memsim.step.fit import Point
from memsim.step.program import difference

SETTINGS = {
    "fp32": TrainingConfig(dtype="float32"),
    "bf16": TrainingConfig(dtype="bfloat16"),
    "autocast": TrainingConfig(dtype="float32", autocast="bfloat16"),
    "checkpointed": TrainingConfig(dtype="bfloat16", activation_checkpointing=True),
    "eager": TrainingConfig(dtype="float32", attn_implementation="eager"),
}
ASKED, UNSEEN = Point(4, 256), Point(6, 384)
WITHOUT_LENGTH = ("images", "spectrogram", "speech", "sound")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", help="model_type; all with a catalog model if left out")
    parser.add_argument("--setting", action="append", choices=SETTINGS)
    parser.add_argument("--gpu", default="A100")
    options = parser.parse_args()
    equal = total = 0
    with Recorder(find_gpu(options.gpu)) as recorder:
        for family in FAMILIES:
            if not family.model or (options.family and family.name not in options.family):
                continue
            for setting in options.setting or SETTINGS:
                start = time.monotonic()
                said = _compared(family, SETTINGS[setting], recorder)
                equal += said.startswith("equal")
                total += 1
                print(f"{family.name:14} {setting:13} {time.monotonic() - start:5.1f} s  {said}", flush=True)
    print(f"{equal} of {total} equal, event for event")


def _compared(family: Family, training: TrainingConfig, recorder: Recorder) -> str:
    config = {**catalog.find(family.model).config, **family.changes}
    asked, unseen = (_without_length(p) if family.inputs in WITHOUT_LENGTH else p for p in (ASKED, UNSEEN))
    limit = min((config[key] for key in POSITION_KEYS if isinstance(config.get(key), int)), default=None)
    job = RecordJob(config=config, training=replace(training, task=family.task))
    try:
        program = record_program(job, Range(asked=asked, length_limit=limit), recorder)
        if program.covers(*unseen):
            return f"not covered: {' '.join(program.unexplained) or program.covers(*unseen)}"
        whole = replace(job.training, batch_size=unseen.batch_size, seq_len=unseen.seq_len or None)
        found = difference(program, unseen, sections_of(recorder.record(replace(job, training=whole)).trace), {})
    except MemsimError as error:
        return f"error: {str(error).splitlines()[0]}"
    return found or f"equal; rules of {[len(regime.points) for regime in program.regimes]} recordings"


def _without_length(point: Point) -> Point:
    return Point(point.batch_size, 0)


if __name__ == "__main__":
    main()
