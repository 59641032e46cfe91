"""The hub's cache on disk: what is there already, and a place for the small files that memsim fetched itself.

Layout: huggingface_hub's documentation, "Understand caching" (`refs/REVISION` holds a commit, `snapshots/COMMIT/FILE`
links to `blobs/ETAG`); huggingface_hub 2.4, file_download.py:1068.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cached_file(repo_id: str, filename: str, revision: str) -> Path | None:
    """Return the cached copy of a file at a branch, tag or commit, or `None`."""
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(repo_id, filename, revision=revision)
    except OSError:  # a cache that cannot be entered holds nothing for us
        return None
    return Path(path) if isinstance(path, str) else None


def store_file(repo_id: str, filename: str, data: bytes, *, revision: str, commit: str, etag: str) -> None:
    """Put `data` where `try_to_load_from_cache` and `hf_hub_download` find it; do nothing where that is not possible.

    Args:
        repo_id: `org/name`, already checked.
        filename: a plain name without folders.
        data: the whole file.
        revision: what the user asked for; its ref is set to `commit`.
        commit: 40 hexadecimal digits.
        etag: a plain name; the file is not stored when it is empty.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    if not etag:
        return
    storage = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model")
    try:
        blob, pointer = storage / "blobs" / etag, storage / "snapshots" / commit / filename
        if not blob.exists():
            _write_atomically(blob, data)
        if not pointer.exists():
            pointer.parent.mkdir(parents=True, exist_ok=True)
            _link(blob, pointer, data)
        if revision != commit:
            _write_atomically(storage / "refs" / revision, commit.encode())
    except OSError:
        # A cache that cannot be written (read-only, full) costs the next call a request, never this one its answer.
        return


def _link(blob: Path, pointer: Path, data: bytes) -> None:
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except FileExistsError:
        pass
    except OSError:  # Windows without the right to make links: the cache holds the file itself
        _write_atomically(pointer, data)


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".incomplete", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
