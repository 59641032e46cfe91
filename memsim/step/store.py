"""`ProgramStore`: step programs on disk, so that a model is recorded once on a machine.

A file is named by a hash of everything that decides what a program holds, keeps that key inside, and is written whole
or not at all: whoever reads while another writes gets the old file or the new one. Whatever is wrong with a file or the
folder costs a new recording and a note, never an error.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memsim.errors import OutputError
from memsim.step.program import StepProgram
from memsim.step.program_file import SCHEMA, program_data, program_of

MAX_BYTES = 200 * 2**20
"""Bytes of all files together; those used longest ago are removed first."""
MAX_FILE_BYTES = 16 * 2**20
"""A program takes 10 to 300 kB."""
MAX_CONTENT_BYTES = 256 * 2**20
"""What a file may unpack to: a small file can claim to hold anything."""
_SUFFIX = ".json.gz"
_UNUSABLE = (OSError, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError, OutputError)


class ProgramStore:
    """Step programs by what they were recorded for.

    Args:
        folder: where the files lie; it is made when the first is written.
        max_bytes: of all files together.
    """

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.notes: list[str] = []
        """What was wrong with the files or the folder, in sentences for the user."""
        self._max_bytes = max_bytes

    def load(self, key: Mapping[str, Any]) -> StepProgram | None:
        """Return the program that was recorded for `key`, a JSON object; `None` if there is none that can be used."""
        path = self._path(key)
        try:
            content = self._content(path)
            if content is None:
                return None
            data = json.loads(content)
            if data.get("key") != _plain(key):
                raise OutputError("it is of another model or version")
            program = program_of(data["program"])
        except _UNUSABLE as error:
            self.notes.append(f"The stored step program {path.name} cannot be used ({_short(error)}): recorded anew.")
            return None
        with suppress(OSError):
            os.utime(path)  # used now: last to be removed
        return program

    def save(self, key: Mapping[str, Any], program: StepProgram) -> None:
        """Keep a program for `key`; a full disk or a folder that cannot be written is a note."""
        path = self._path(key)
        body = json.dumps({"key": _plain(key), "program": program_data(program)}, separators=(",", ":"))
        data = gzip.compress(body.encode(), 6, mtime=0)
        temporary = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".new-", delete=False) as file:
                temporary = file.name
                file.write(data)
            os.replace(temporary, path)
            temporary = None
            self._bound()
        except OSError as error:
            self.notes.append(f"The step program could not be stored in {self.folder} ({error.strerror or error}).")
        finally:
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)

    def _path(self, key: Mapping[str, Any]) -> Path:
        text = json.dumps([SCHEMA, _plain(key)], sort_keys=True, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{_SUFFIX}"

    def _content(self, path: Path) -> bytes | None:
        """Return what a file holds, unpacked; `None` if there is no file."""
        try:
            with path.open("rb") as file:
                packed = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(packed) > MAX_FILE_BYTES:
            raise OutputError(f"it has more than {MAX_FILE_BYTES:,} bytes")
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        content = unpacker.decompress(packed, MAX_CONTENT_BYTES)
        if not unpacker.eof:  # the checksum at its end is compared there
            raise OutputError("it is not whole")
        return content

    def _bound(self) -> None:
        """Remove the files used longest ago until all fit."""
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size


def _plain(key: Mapping[str, Any]) -> Any:
    """Return a key as JSON gives it back: lists for tuples, text for names."""
    return json.loads(json.dumps(key, sort_keys=True))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120].rstrip(".") or type(error).__name__
