"""What a shared library asks of other libraries, read from its ELF tables (64-bit, little-endian).

Layout: System V ABI, "Object Files" and "Program Loading and Dynamic Linking"; versions: the Linux Standard Base's
"Symbol Versioning".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED, _SHT_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME = 1, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one shared library needs and defines."""

    path: Path
    soname: str | None
    needed: tuple[str, ...]
    """Sonames that the loader must find (`DT_NEEDED`)."""
    versioned: frozenset[tuple[str, str, str]]
    """Undefined symbols with a version: (soname, version, symbol)."""
    unversioned: frozenset[str]
    """Undefined symbols that any library may provide."""
    defined: frozenset[str]
    """Symbols that the library itself provides."""


def needed_sonames(path: Path) -> tuple[str, ...]:
    """Return the sonames that the library at `path` needs; empty when it is no 64-bit ELF library."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            image = _Image(data)
            return image.dynamic_strings(_DT_NEEDED)
    except (ValueError, OSError, struct.error, IndexError):
        return ()


def read_needs(path: Path) -> Needs:
    """Return what the shared library at `path` needs and defines.

    Raises:
        ValueError: the file is no 64-bit little-endian ELF library with section headers.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        image = _Image(data)
        versions = image.needed_versions()
        versioned, unversioned, defined = set(), set(), set()
        for name, is_defined, version in image.symbols():
            if is_defined:
                defined.add(name)
            elif version in versions:
                versioned.add((*versions[version], name))
            else:
                unversioned.add(name)
        sonames = image.dynamic_strings(_DT_SONAME)
        return Needs(
            path=path,
            soname=sonames[0] if sonames else None,
            needed=image.dynamic_strings(_DT_NEEDED),
            versioned=frozenset(versioned),
            unversioned=frozenset(unversioned),
            defined=frozenset(defined),
        )


class _Image:
    """The sections of one library that dynamic linking uses."""

    def __init__(self, data: mmap.mmap) -> None:
        header = _HEADER.unpack_from(data, 0)
        if header[0][:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self._data = data
        start, size, count = header[6], header[11], header[12]
        self._sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]

    def _of_type(self, kind: int) -> tuple[int, ...] | None:
        return next((section for section in self._sections if section[1] == kind), None)

    def _content(self, section: tuple[int, ...]) -> bytes:
        return self._data[section[4] : section[4] + section[5]]

    def _strings_of(self, section: tuple[int, ...]) -> bytes:
        return self._content(self._sections[section[6]])

    def dynamic_strings(self, tag: int) -> tuple[str, ...]:
        section = self._of_type(_SHT_DYNAMIC)
        if section is None:
            return ()
        strings = self._strings_of(section)
        entries = _DYNAMIC.iter_unpack(self._content(section))
        return tuple(_text(strings, value) for kind, value in entries if kind == tag)

    def needed_versions(self) -> dict[int, tuple[str, str]]:
        """Return (soname, version) by the number that symbols use."""
        section = self._of_type(_SHT_VERNEED)
        found: dict[int, tuple[str, str]] = {}
        if section is None:
            return found
        content, strings = self._content(section), self._strings_of(section)
        at = 0
        while True:
            _, count, file, first, following = struct.unpack_from("<HHIII", content, at)
            aux = at + first
            for _ in range(count):
                _, _, other, name, aux_next = struct.unpack_from("<IHHII", content, aux)
                found[other] = (_text(strings, file), _text(strings, name))
                aux += aux_next
            if not following:
                return found
            at += following

    def symbols(self) -> Iterator[tuple[str, bool, int]]:
        """Yield (name, whether it is defined here, version number) of every dynamic symbol."""
        table, numbers = self._of_type(_SHT_DYNSYM), self._of_type(_SHT_VERSYM)
        if table is None:
            raise ValueError("no dynamic symbols")
        strings = self._strings_of(table)
        entries = list(_SYMBOL.iter_unpack(self._content(table)))
        versions = memoryview(self._content(numbers)).cast("H") if numbers else [0] * len(entries)
        for (name, _info, _other, section_index, _value, _size), version in zip(entries, versions, strict=True):
            if name:
                yield _text(strings, name), section_index != 0, version & 0x7FFF


def _text(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode()
