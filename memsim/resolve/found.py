"""`FoundModel`: what a folder or the hub gave, before a parameter table is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memsim.resolve.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """What was found about a model before a parameter table is made of it."""

    name: str
    """What the user gave, or the hub id."""
    source: str
    """`ModelSpec.source`."""
    where: str
    """The config's own place, for messages."""
    config: Mapping[str, Any]
    """Content of config.json."""
    checkpoint: Checkpoint
    """Its tensors, if it has safetensors files."""
    notes: tuple[str, ...] = ()
    """Sentences about how it was found."""
