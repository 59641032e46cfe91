"""Writing results: nothing of the user's is ever lost."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memsim.errors import OutputError


def check_new(path: str | Path, *, force: bool) -> Path:
    """Return `path` if a result may be written there.

    Raises:
        OutputError: it is a folder, its folder does not exist, or it exists and `force` is not set.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{str(path)!r} is a folder: give the name of a file in it.")
    if not target.parent.is_dir():
        raise OutputError(f"cannot write {str(path)!r}: the folder {str(target.parent)!r} does not exist.")
    if target.exists() and not force:
        raise OutputError(f"{str(path)!r} exists: choose another name, or overwrite it with -f / --force.")
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
        if target.exists() and not target.is_file():  # a device or a pipe (/dev/stdout) cannot be replaced
            target.write_bytes(data)
            return
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".memsim-", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
