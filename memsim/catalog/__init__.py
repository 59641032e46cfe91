"""The catalog: models whose facts and parameter tables ship with memsim and need neither network nor torch."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memsim.catalog.entry import CatalogEntry, CatalogFile
from memsim.errors import ModelError, UnknownNameError

__all__ = ["CatalogEntry", "entries", "find", "kept_in_float32", "names"]

_FILE_NAME = re.compile(r"[a-z0-9_-]+\.json")


def find(name: str) -> CatalogEntry:
    """Return the model with this id or alias; case does not matter, nor the organisation where it is unambiguous.

    Raises:
        UnknownNameError: no model of the catalog has that name; the message says which come near.
        ModelError: the catalog's files are missing or damaged.
    """
    index = _index()
    folded = name.casefold()
    found = index["by_name"].get(folded) or _without_organisation(folded, index["ids"])
    if found is None:
        hint = "See 'memsim catalog', or give a hub id org/name or a folder with config.json."
        near = [*names(), *(known.partition("/")[2] for known in index["ids"])]
        raise UnknownNameError("model", name, near, hint)
    return _entry(found, index["ids"][found])


def names() -> tuple[str, ...]:
    """Return every id and alias, sorted without regard to case."""
    index = _index()
    return tuple(sorted([*index["ids"], *index["aliases"]], key=str.casefold))


def entries() -> Iterator[CatalogEntry]:
    """Yield every model, sorted by id without regard to case."""
    ids = _index()["ids"]
    for model in sorted(ids, key=str.casefold):
        yield _entry(model, ids[model])


@functools.cache
def kept_in_float32() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return, for every `model_type` of transformers, what it keeps in float32; see models_catalog/float32.py.

    Raises:
        ModelError: the catalog's files are missing or damaged.
    """
    parsed = _parsed("float32.json")
    return {**{name: {} for name in parsed["others"]}, **parsed["kept"]}


def _without_organisation(folded: str, ids: Mapping[str, str]) -> str | None:
    matching = [known for known in ids if known.casefold().partition("/")[2] == folded]
    if len(matching) > 1:
        raise UnknownNameError("model", folded, matching, f"Several have that name: {', '.join(sorted(matching))}.")
    return matching[0] if matching else None


@functools.cache
def _folder() -> Path:
    package = Path(__file__).resolve().parents[1]
    # In the wheel the data lies inside the package, in a checkout beside it.
    for folder in (package / "models_catalog", package.parent / "models_catalog"):
        if (folder / "index.json").is_file():
            return folder
    raise ModelError("memsim's catalog of models is missing from this installation. Install memsim again.")


def _parsed(file_name: str) -> Any:
    path = _folder() / file_name
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"the catalog file {path} cannot be read: {error}. Install memsim again.") from error


@functools.cache
def _index() -> dict[str, dict[str, str]]:
    """Return the file of each id, the id of each alias, and the id of each of both in lower case."""
    index = _parsed("index.json")
    ids = {model: file_name for file_name, models in index["files"].items() for model in models}
    aliases: dict[str, str] = index["aliases"]
    by_name = {model.casefold(): model for model in ids} | {alias.casefold(): aliases[alias] for alias in aliases}
    return {"ids": ids, "aliases": aliases, "by_name": by_name}


@functools.cache
def _file(file_name: str) -> CatalogFile:
    if not _FILE_NAME.fullmatch(file_name):
        raise ModelError(f"the catalog's index names {file_name!r}, which is no file of it. Install memsim again.")
    parsed = _parsed(file_name)
    return CatalogFile(models=parsed["models"], shared=parsed["shared"])


@functools.cache
def _entry(model: str, file_name: str) -> CatalogEntry:
    file = _file(file_name)
    facts = file.models[model]
    published = facts.get("published", {})
    return CatalogEntry(
        id=model,
        aliases=tuple(facts.get("aliases", ())),
        model_type=facts["config"]["model_type"],
        task=facts["task"],
        model_class=facts["model_class"],
        tasks=tuple(facts["tables"]),
        dtype=facts.get("dtype"),
        config={**facts["facts"], **facts["config"], "architectures": [facts["model_class"]]},
        num_labels=facts["num_labels"],
        num_parameters=facts["num_parameters"],
        published_num_parameters=published.get("num_parameters"),
        published_match=published.get("match", ""),
        published_source=published.get("source", ""),
        confirmation=facts["confirmation"],
        source=facts["source"],
        other_source=facts.get("source2", ""),
        note=facts.get("note", ""),
        keys_not_read=tuple(facts.get("keys_not_read", ())),
        assumptions=tuple(facts.get("assumptions", ())),
        file=file,
    )
