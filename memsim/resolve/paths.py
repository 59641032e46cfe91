"""Questions to the file system about paths that a stranger may have written: an answer or one clear error.

`pathlib` raises whatever the system says (no permission, a name too long, no such user); here it is a `ModelError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memsim.errors import MemsimError, ModelError

_SHOWN = 300


def is_file(path: Path) -> bool:
    """Return whether there is a regular file, or a link to one.

    Raises:
        ModelError: the system does not say: no permission, a name too long, links that go round.
    """
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, or a link to one.

    Raises:
        ModelError: as `is_file`.
    """
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def expanded(text: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced.

    Raises:
        ModelError: there is no such user.
    """
    with readable(text):
        return Path(text).expanduser()


def shown(path: str | Path) -> str:
    """Return a path for messages: printable and not without end."""
    text = str(path)
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 2 :]}"
    return cut if cut.isprintable() else repr(cut)


@contextmanager
def readable(path: str | Path, kind: type[ModelError] = ModelError) -> Iterator[None]:
    """Turn what the system says about `path` into an error of `kind`."""
    try:
        yield
    except MemsimError:
        raise
    except OSError as error:
        raise kind(f"{shown(path)} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RuntimeError) as error:  # a null byte; links that go round and unknown users, by pathlib
        raise kind(f"{shown(path)} cannot be read: {str(error)[:_SHOWN]}") from error


def _mode(path: Path) -> int | None:
    with readable(path):
        try:
            return os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
