"""A model on the hub: config.json whole, safetensors headers by range requests, weights never.

The cache, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE` and proxies are huggingface_hub's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from memsim.errors import HubError, shown
from memsim.resolve.checkpoint import (
    INDEX_FILE,
    SINGLE_FILE,
    Checkpoint,
    Progress,
    sharded_checkpoint,
    single_checkpoint,
    weight_map,
)
from memsim.resolve.config_json import CONFIG_FILE, MAX_CONFIG_BYTES, parse_config
from memsim.resolve.folder import read_file_header, read_small
from memsim.resolve.found import FoundModel
from memsim.resolve.hub_cache import cached_file, store_file
from memsim.resolve.hub_errors import explain
from memsim.resolve.hub_http import (
    Deadline,
    FileMetadata,
    HubStatusError,
    HubUnreachableError,
    check_environment,
    file_metadata,
    read_range,
    read_whole,
)
from memsim.resolve.safetensors_header import LENGTH_BYTES, header_length, parse_header
from memsim.tensors import TensorSpec

FIRST_BYTES = 65_536
"""Asked for at once, so that most headers need one request."""

PARALLEL_REQUESTS = 8

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[\w+][\w.+-]*(/[\w+][\w.+-]*)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repo:
    """One model at one commit, within one deadline."""

    repo_id: str
    commit: str
    deadline: Deadline
    online: bool
    progress: Progress | None

    def url(self, filename: str) -> str:
        return _url(self.repo_id, filename, self.commit)

    def cached(self, filename: str) -> Path | None:
        return cached_file(self.repo_id, filename, self.commit)


class _NotCachedError(Exception):
    """Offline, and the file is not in the cache."""


def is_hub_id(text: str) -> bool:
    """Return whether `text` has the form `org/name` or `org/name@revision`."""
    return _ID.fullmatch(text.partition("@")[0]) is not None


def read_hub(model: str, progress: Progress | None = None) -> FoundModel:
    """Return config and checkpoint of `model`, `org/name` or `org/name@revision`.

    What is in the cache at the commit that the hub names is not asked for again; when the hub cannot be asked, the
    cached commit of the revision is taken and said so.

    Raises:
        HubError: the hub did not give the config: missing, gated, unreachable, rate-limited, damaged.
        ModelError: the config is no model's.
        CheckpointError: a safetensors header or index that cannot be trusted.
    """
    repo_id, at, revision = model.partition("@")
    if at and (not _REVISION.fullmatch(revision) or len(revision) > 200 or ".." in revision):
        raise HubError(f"{shown(model)} names no revision: give a branch, tag or commit after @, as in {repo_id}@main.")
    revision = revision or "main"
    check_environment()
    deadline = Deadline.start()
    if progress:
        progress(f"asking the hub for {model}")
    try:
        metadata = file_metadata(_url(repo_id, CONFIG_FILE, revision), deadline)
        repo = _Repo(repo_id=repo_id, commit=metadata.commit, deadline=deadline, online=True, progress=progress)
        data, config_path = _config(repo, revision, metadata), f"{CONFIG_FILE} of {model} on the hub"
        note = ""
    except (HubStatusError, HubUnreachableError) as error:
        cached = _cached_config(repo_id, revision, error)
        if cached is None:
            raise explain(repo_id, revision, error) from None
        repo = _Repo(repo_id=repo_id, commit=cached.parent.name, deadline=deadline, online=False, progress=progress)
        data, config_path = read_small(cached), str(cached)
        note = f"The hub was not asked ({error}): the cached commit {repo.commit[:12]} of {model} was taken."
    return FoundModel(
        name=model,
        source=f"hub:{repo_id}@{repo.commit}",
        where=config_path,
        config=parse_config(data, config_path),
        checkpoint=_checkpoint(repo, model),
        notes=(note,) if note else (),
    )


def _url(repo_id: str, filename: str, revision: str) -> str:
    from huggingface_hub import hf_hub_url

    try:
        return str(hf_hub_url(repo_id, filename, revision=revision))
    except ValueError as error:  # HFValidationError
        raise HubError(f"{repo_id!r} cannot be a hub id ({error}). It has the form org/name.") from None


def _cached_config(repo_id: str, revision: str, error: Exception) -> Path | None:
    # The hub knows better than the cache that a revision or file is gone; anything else may be the connection's fault.
    if isinstance(error, HubStatusError) and error.code in ("RevisionNotFound", "EntryNotFound"):
        return None
    return cached_file(repo_id, CONFIG_FILE, revision)


def _config(repo: _Repo, revision: str, metadata: FileMetadata) -> bytes:
    cached = repo.cached(CONFIG_FILE)
    if cached is not None:
        return read_small(cached)
    data = read_whole(repo.url(CONFIG_FILE), MAX_CONFIG_BYTES, repo.deadline)
    parse_config(data, f"{CONFIG_FILE} of {repo.repo_id} on the hub")  # garbage must not reach the cache
    store_file(repo.repo_id, CONFIG_FILE, data, revision=revision, commit=repo.commit, etag=metadata.etag)
    return data


def _checkpoint(repo: _Repo, model: str) -> Checkpoint:
    try:
        try:
            return single_checkpoint(_header(repo, SINGLE_FILE))
        except (_NotCachedError, HubStatusError) as error:
            if isinstance(error, HubStatusError) and error.status != 404:
                raise
        index = _index(repo)
        return sharded_checkpoint(index, f"{INDEX_FILE} of {model}", lambda shards: _headers(repo, shards))
    except _NotCachedError:
        return Checkpoint(missing="its safetensors files are not in the hub's cache, and the hub was not asked")
    except HubStatusError as error:
        if error.status == 404:
            return Checkpoint(missing=f"it has no {SINGLE_FILE} and no {INDEX_FILE} on the hub")
        raise explain(repo.repo_id, repo.commit, error) from None
    except HubUnreachableError as error:
        raise HubError(f"the headers of {model} could not be read: {error}.\nTry again.") from None


def _index(repo: _Repo) -> bytes:
    cached = repo.cached(INDEX_FILE)
    if cached is not None:
        return read_small(cached)
    if not repo.online:
        raise _NotCachedError
    metadata = file_metadata(repo.url(INDEX_FILE), repo.deadline)
    data = read_whole(repo.url(INDEX_FILE), MAX_CONFIG_BYTES, repo.deadline)
    weight_map(data, f"{INDEX_FILE} of {repo.repo_id}")  # garbage must not reach the cache
    store_file(repo.repo_id, INDEX_FILE, data, revision=repo.commit, commit=repo.commit, etag=metadata.etag)
    return data


def _headers(repo: _Repo, shards: list[str]) -> list[Mapping[str, TensorSpec]]:
    pool = ThreadPoolExecutor(PARALLEL_REQUESTS)
    try:
        futures = [pool.submit(_header, repo, shard) for shard in shards]
        return list(_counted((future.result() for future in futures), len(shards), repo.progress))
    except HubStatusError as error:
        if error.status == 404:
            raise HubError(f"{repo.repo_id} lacks a shard that its index names; its upload is incomplete.") from None
        raise
    finally:
        # After an error or Ctrl-C nothing that still waits is asked for.
        pool.shutdown(wait=False, cancel_futures=True)


def _counted(
    headers: Iterable[Mapping[str, TensorSpec]], total: int, progress: Progress | None
) -> Iterable[Mapping[str, TensorSpec]]:
    for done, header in enumerate(headers, 1):
        if progress:
            progress(f"read {done} of {total} safetensors headers")
        yield header


def _header(repo: _Repo, name: str) -> Mapping[str, TensorSpec]:
    cached = repo.cached(name)
    if cached is not None:
        return read_file_header(Path(str(cached)[: -len(name) - 1]), name)
    if not repo.online:
        raise _NotCachedError
    where = f"{name} of {repo.repo_id} on the hub"
    first = read_range(repo.url(name), 0, FIRST_BYTES, repo.deadline)
    length = header_length(first.data, first.file_bytes, where)
    header = first.data[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(header) < length:
        rest = read_range(repo.url(name), LENGTH_BYTES + len(header), length - len(header), repo.deadline)
        header += rest.data
    return parse_header(header, first.file_bytes, where)
