"""Exceptions of memsim: each message says what was given, what is allowed and what to do next."""

from __future__ import annotations

from collections.abc import Iterable


class MemsimError(Exception):
    """Base of every error that memsim raises on purpose; the CLI prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(MemsimError):
    """An option or argument that memsim cannot accept (exit code 2)."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that is in none of memsim's tables; the message names the nearest ones."""

    def __init__(self, kind: str, given: str, known: Iterable[str], hint: str = "") -> None:
        self.nearest = nearest_names(given, known)
        near = f" Did you mean {', '.join(self.nearest)}?" if self.nearest else ""
        super().__init__(f"unknown {kind} {shown(given)}.{near}{' ' + hint if hint else ''}")


class NoLabelsError(UsageError):
    """A number of labels for a class that has no head of that size."""

    def __init__(self, model_class: str, num_labels: int, tasks: Iterable[str]) -> None:
        listed = ", ".join(tasks)
        super().__init__(
            f"{model_class} has no head with a number of labels, so num_labels {num_labels} would change nothing.\n"
            + (f"Leave it out, or choose a task that takes it: {listed}." if listed else "Leave it out.")
        )


class ModelError(MemsimError):
    """The model could not be resolved to a parameter table."""


class CheckpointError(ModelError):
    """A safetensors file or index whose header cannot be trusted."""


class HubError(ModelError):
    """The hub did not give what was asked for: missing, gated, offline, rate-limited, damaged."""


class MissingPackageError(MemsimError):
    """An optional package is needed; the message names the extra that brings it."""


class OutputError(MemsimError):
    """A result could not be written or read back."""


def shown(value: object, limit: int = 80) -> str:
    """Return `repr(value)` for a message, cut so that what somebody else wrote cannot fill the screen."""
    if isinstance(value, str):
        value = value[:limit]  # before repr, which may make ten characters of one
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def nearest_names(given: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """Return at most `limit` of the `known` names that look most like `given`, best first."""
    import difflib

    given = given[:200]  # the cost grows with the square of the length
    by_lower: dict[str, str] = {}
    for name in known:
        by_lower.setdefault(name.lower(), name)
    close = difflib.get_close_matches(given.lower(), by_lower, n=limit, cutoff=0.6)
    return tuple(by_lower[name] for name in close)
