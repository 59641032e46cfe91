"""Lets transformers' `generate` come to its end, though no value on an imaginary GPU is ever real.

Its loop ends when a tensor on the GPU says so, which never happens where nothing is computed. The criterion of length
is decided on the host before it becomes such a tensor: that decision is remembered and ends the loop.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

NOTE = "Generation ran to its greatest length: no end-of-sequence token is ever seen."


class Generation:
    """Whether the sequences that are being generated have reached their greatest length."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes
        self._full = False

    def criteria_are_there(self, module: ModuleType) -> None:
        """Watch `MaxLengthCriteria` (transformers/generation/stopping_criteria.py:77 @5.24)."""
        original = module.MaxLengthCriteria.__call__

        @functools.wraps(original)
        def call(criterion: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            self._full = input_ids.shape[1] >= criterion.max_length
            return original(criterion, input_ids, *args, **kwargs)

        module.MaxLengthCriteria.__call__ = call

    def loop_is_there(self, module: ModuleType) -> None:
        """Watch `GenerationMixin._has_unfinished_sequences` (transformers/generation/utils.py:3020 @5.24)."""
        original = module.GenerationMixin._has_unfinished_sequences

        @functools.wraps(original)
        def has_unfinished(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._full:
                self._full = False
                if NOTE not in self._notes:
                    self._notes.append(NOTE)
                return False
            return original(model, *args, **kwargs)

        module.GenerationMixin._has_unfinished_sequences = has_unfinished
