"""Bounded requests to the hub: one answer or one clear error, within `TOTAL_SECONDS`, and never a whole weights file.

huggingface_hub's own requests retry a cut connection without end, or sleep as long as a 429 answer says (`http_get`,
file_download.py:334 and `_http_backoff_base`, utils/_http.py:469 @2.4; 1.0 does so for metadata too). memsim asks a few
small questions and prefers to fail: it goes through huggingface_hub's session (`get_session`: the user's proxies,
certificates and offline mode) with huggingface_hub's headers (`build_hf_headers`: the token), under its own deadline.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urljoin

from memsim.errors import HubError, MissingPackageError

TOTAL_SECONDS = 45.0
"""Longest time that resolving one model may take."""

RETRY_SECONDS = 0.5
"""Pause before the only second try, after a connection was cut."""

MAX_REDIRECTS = 5

_T = TypeVar("_T")


class HubStatusError(Exception):
    """An HTTP status that is no success; the caller knows what it means for the user."""

    def __init__(self, status: int, headers: Any) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.code: str = headers.get("X-Error-Code") or ""
        self.message: str = headers.get("X-Error-Message") or ""
        self.retry_after: str = headers.get("Retry-After") or ""


class HubUnreachableError(Exception):
    """No HTTP answer at all; the message is a clause such as `no connection to https://... (ConnectError)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The moment at which a call gives up."""

    at: float
    """In seconds of `time.monotonic`."""

    @classmethod
    def start(cls) -> Deadline:
        """Return the deadline of a call that begins now."""
        return cls(at=time.monotonic() + TOTAL_SECONDS)

    def remaining(self) -> float:
        """Return the seconds that are left.

        Raises:
            HubUnreachableError: nothing is left.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise HubUnreachableError(f"the hub took longer than {TOTAL_SECONDS:g} s")
        return left


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata:
    """What a HEAD request says about a file."""

    commit: str
    """Full hash of the commit that the revision names."""
    etag: str
    """Name of the content in the hub's cache; empty where it is no plain name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The first bytes of a range, and the length of the whole file."""

    data: bytes
    """Exactly as many bytes as asked for, fewer only at the end of the file."""
    file_bytes: int
    """Length of the whole file in bytes."""


def file_metadata(url: str, deadline: Deadline) -> FileMetadata:
    """Return commit and etag of the file at `url`.

    A large file's answer is a redirect to a storage host that carries both in its own headers, a renamed repository's
    is a redirect that carries neither (as `get_hf_file_metadata` reads them, file_download.py:1618 @2.4).

    Raises:
        HubStatusError: the answer is no success.
        HubUnreachableError: there was no answer.
        HubError: the answer is none of a hub.
    """
    asked = url
    headers = _headers()
    for _ in range(MAX_REDIRECTS):
        with _network(asked):
            response = _head(asked, headers, deadline)
        if response.status_code >= 400:
            raise HubStatusError(response.status_code, response.headers)
        commit, target = response.headers.get("X-Repo-Commit") or "", response.headers.get("Location")
        if commit or not target:
            break
        asked, origin = urljoin(asked, target), _host(asked)
        if _host(asked) != origin:
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
    # Both become parts of paths in the cache.
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise HubError(
            f"{_host(url)} answers, but not as a hub does (its X-Repo-Commit header is {commit[:50]!r}).\n"
            "Check HF_ENDPOINT, proxy and firewall."
        )
    etag = (response.headers.get("X-Linked-Etag") or response.headers.get("ETag") or "").removeprefix("W/").strip('"')
    return FileMetadata(commit=commit, etag=etag if re.fullmatch(r"[0-9A-Za-z_-]{8,128}", etag) else "")


def read_whole(url: str, max_bytes: int, deadline: Deadline) -> bytes:
    """Return the file at `url`, with one second try after a cut connection.

    Raises:
        HubStatusError: the answer is no success.
        HubUnreachableError: no answer, or it stopped in the middle twice.
        HubError: the file is larger than `max_bytes`.
    """
    return _twice(lambda: _read_whole(url, max_bytes, deadline), deadline)


def read_range(url: str, begin: int, num_bytes: int, deadline: Deadline) -> Piece:
    """Return `num_bytes` bytes of the file at `url` from `begin`, with one second try after a cut connection.

    A server that ignores `Range` and sends the whole file is read up to the last byte asked for and no further.

    Raises:
        HubStatusError: the answer is no success.
        HubUnreachableError: no answer, or it stopped in the middle twice.
        HubError: the answer does not say how long the file is.
    """
    return _twice(lambda: _read_range(url, begin, num_bytes, deadline), deadline)


def _twice(attempt: Callable[[], _T], deadline: Deadline) -> _T:
    try:
        return attempt()
    except HubUnreachableError:
        if deadline.at - time.monotonic() <= RETRY_SECONDS:
            raise
        time.sleep(RETRY_SECONDS)
        return attempt()


def _read_whole(url: str, max_bytes: int, deadline: Deadline) -> bytes:
    with _answer(url, {}, deadline) as (response, pieces):
        if response.status_code != 200:
            raise HubStatusError(response.status_code, response.headers)
        data = bytearray()
        for piece in pieces:
            data += piece
            if len(data) > max_bytes:
                raise HubError(f"{_host(url)}: {_name(url)} is larger than {max_bytes} bytes, which none is.")
            deadline.remaining()
        length = response.headers.get("Content-Length") or ""
        if length.isdigit() and not response.headers.get("Content-Encoding") and len(data) != int(length):
            raise HubUnreachableError(f"the answer stopped after {len(data)} of {length} bytes")
    return bytes(data)


def _read_range(url: str, begin: int, num_bytes: int, deadline: Deadline) -> Piece:
    ask = {"Range": f"bytes={begin}-{begin + num_bytes - 1}"}
    with _answer(url, ask, deadline) as (response, pieces):
        if response.status_code not in (200, 206, 416):
            raise HubStatusError(response.status_code, response.headers)
        file_bytes = _file_bytes(url, response.status_code, response.headers, begin)
        skip = begin if response.status_code == 200 else 0
        wanted = skip + min(num_bytes, max(0, file_bytes - begin))
        data = bytearray()
        while len(data) < wanted:
            piece = next(pieces, b"")
            if not piece:
                raise HubUnreachableError(f"the answer stopped after {len(data)} of {wanted} bytes")
            data += piece
            deadline.remaining()
    return Piece(data=bytes(data[skip:wanted]), file_bytes=file_bytes)


def _file_bytes(url: str, status: int, headers: Any, begin: int) -> int:
    if status == 200:
        length, known = headers.get("Content-Length") or "", not headers.get("Content-Encoding")
        if known and re.fullmatch(r"\d{1,18}", length):
            return int(length)
    else:  # 416 is the answer for an empty file
        form = rf"bytes {begin}-\d{{1,18}}/(\d{{1,18}})" if status == 206 else r"bytes \*/(\d{1,18})"
        match = re.fullmatch(form, headers.get("Content-Range") or "")
        if match:
            return int(match[1])
    raise HubError(
        f"{_host(url)} does not say how long {_name(url)} is, as a hub does.\nCheck HF_ENDPOINT, proxy and firewall."
    )


def check_environment() -> None:
    """Make sure that huggingface_hub can be used with the variables of this environment.

    It reads them when it is imported (constants.py:25 and :314 @2.4) and the token's file at each request.

    Raises:
        HubError: a variable that is no number, or a token file that cannot be read.
        MissingPackageError: huggingface_hub is not installed.
    """
    try:
        import huggingface_hub.constants
        import huggingface_hub.file_download
        import huggingface_hub.utils  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"asking the hub needs {error.name or 'huggingface_hub'}, which cannot be imported: "
            "pip install huggingface_hub"
        ) from error
    except Exception as error:
        raise HubError(
            f"huggingface_hub cannot be used with this environment: {str(error)[:200] or type(error).__name__}.\n"
            f"Correct or unset {_hub_variables()}; time-outs are whole numbers of seconds."
        ) from error
    _headers()


def _hub_variables() -> str:
    return ", ".join(sorted(name for name in os.environ if name.startswith("HF_") and "TOKEN" not in name)) or "HF_*"


def _headers() -> dict[str, str]:
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    try:
        return {**build_hf_headers(library_name="memsim"), "Accept-Encoding": "identity"}
    except OSError as error:
        raise HubError(
            f"the token of the hub cannot be read from {constants.HF_TOKEN_PATH}: {error.strerror or error}.\n"
            "Correct or unset HF_HOME and HF_TOKEN_PATH, or set HF_TOKEN."
        ) from error


def _head(url: str, headers: dict[str, str], deadline: Deadline) -> Any:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    redirects = {"follow_redirects": False} if _is_httpx(session) else {"allow_redirects": False}
    timeout = min(constants.HF_HUB_ETAG_TIMEOUT, deadline.remaining())
    return session.request("HEAD", url, headers=headers, timeout=timeout, **redirects)


@contextmanager
def _answer(url: str, more_headers: dict[str, str], deadline: Deadline) -> Iterator[tuple[Any, Iterator[bytes]]]:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    headers = {**_headers(), **more_headers}
    timeout = min(constants.HF_HUB_DOWNLOAD_TIMEOUT, deadline.remaining())
    session: Any = get_session()
    with _network(url):
        if _is_httpx(session):
            with session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
                yield response, response.iter_bytes()
        else:
            with session.get(url, headers=headers, timeout=timeout, stream=True) as response:
                yield response, response.iter_content(65536)


def _is_httpx(session: Any) -> bool:
    # huggingface_hub >= 1.0 speaks through an httpx client, before that through a requests session, whose `stream`
    # is a flag.
    return callable(getattr(session, "stream", None))


@contextmanager
def _network(url: str) -> Iterator[None]:
    from huggingface_hub.utils import OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled:
        raise HubUnreachableError("offline mode is on (HF_HUB_OFFLINE)") from None
    except _transport_errors() as error:
        raise HubUnreachableError(_clause(url, error)) from None


def _transport_errors() -> tuple[type[BaseException], ...]:
    # httpx, httpx2 or requests: whichever the installed huggingface_hub speaks through.
    from huggingface_hub.utils import get_session

    library = importlib.import_module(type(get_session()).__module__.partition(".")[0])
    named = (getattr(library, name, None) for name in ("RequestException", "HTTPError", "InvalidURL", "StreamError"))
    return (OSError, *(error for error in named if error is not None))


def _clause(url: str, error: BaseException) -> str:
    kind = type(error).__name__
    if "Timeout" in kind:
        return f"{_host(url)} did not answer in time ({kind}; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT set it)"
    if "Connect" in kind and "Reset" not in kind:
        return f"no connection to {_host(url)} ({kind})"
    return f"the connection to {_host(url)} broke off ({kind})"


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _host(url: str) -> str:
    # Without user:password@, which an endpoint may carry.
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"
