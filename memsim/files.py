"""Writing results: nothing of the user's is ever lost."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from memsim.errors import OutputError, shown


def check_new(path: str | Path, *, force: bool) -> Path:
    """Return the file that a result may be written to; a link leads to the file that it points to.

    Raises:
        OutputError: it is no file name, a folder, its folder does not exist, or it exists and `force` is not set.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        raise OutputError(f"{shown(path)} is no file name: give the name of a file to write.")
    try:
        target = Path(os.path.realpath(path))
        mode = _mode_of(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(f"{shown(str(path))} is a folder: give the name of a file in it.")
        if _mode_of(target.parent) is None:
            raise OutputError(f"cannot write {shown(str(path))}: its folder does not exist.")
        exists = mode is not None or os.path.islink(path)
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    if exists and not force:
        raise OutputError(f"{shown(str(path))} exists: choose another name, or overwrite it with -f / --force.")
    return target


def write_new(path: str | Path, content: str | bytes, *, force: bool = False) -> None:
    """Write a file whole or not at all: an old file stays as it was until the new one is complete.

    Raises:
        OutputError: see `check_new`; or the file cannot be written.
    """
    target = check_new(path, force=force)
    data = content.encode() if isinstance(content, str) else content
    temporary = None
    try:
        mode = _mode_of(target)
        if mode is not None and not stat.S_ISREG(mode):  # a device or a pipe (/dev/stdout) cannot be replaced
            target.write_bytes(data)
            return
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".memsim-", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        if temporary is not None:
            os.unlink(temporary)


def _mode_of(path: Path) -> int | None:
    """Return the mode of a file or folder; `None` where there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _cannot_write(path: str | Path, error: Exception) -> OutputError:
    return OutputError(f"cannot write {shown(str(path))}: {getattr(error, 'strerror', None) or error}.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
