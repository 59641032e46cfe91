"""A small server that speaks the hub's HTTP for files, with every way of failing that a real one has.

Answers follow what huggingface_hub reads: `X-Repo-Commit`, `ETag`, `X-Linked-Size`, `X-Error-Code`, `Range`.
"""

import hashlib
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


class Request(NamedTuple):
    """One request, as it came."""

    method: str
    path: str
    headers: dict
    sent: list
    """Bytes of body that were written for it, piece by piece."""


@dataclass
class Fault:
    """How the answer for a path goes wrong."""

    status: int = 200
    headers: dict = field(default_factory=dict)
    body: bytes | None = None
    cut_after: int | None = None
    """Close the connection after this many bytes of the body."""
    ignore_range: bool = False
    hang: float = 0
    """Seconds before an answer."""
    drop: tuple = ()
    """Header names that are left out."""
    methods: tuple = ("GET", "HEAD")
    times: int = 10**9
    """How often it happens."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that leaves in the middle is what the tests want."""


class HubServer:
    """`with HubServer() as hub:`; `hub.repos[id][revision]` is `(commit, {file name: bytes})`."""

    def __init__(self):
        self.repos = {}
        self.faults = {}
        self.requests = []
        self.token = None
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def add(self, repo_id, files, *, revision="main", commit=COMMIT):
        """Put files into a repo under a revision and under its commit."""
        revisions = self.repos.setdefault(repo_id, {})
        revisions[revision] = revisions[commit] = (commit, files)

    def fail(self, file, **fault):
        """Make every request for a file name go wrong in this way."""
        self.faults[file] = Fault(**fault)

    def of(self, file):
        """Return the requests for a file name."""
        return [request for request in self.requests if request.path.endswith("/" + file)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self):
        return self.server.hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self._answer(body_wanted=False)

    def do_GET(self):
        self._answer(body_wanted=True)

    def _answer(self, *, body_wanted):
        request = Request(self.command, self.path, dict(self.headers), [])
        self.hub.requests.append(request)
        match = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path)
        fault = self.hub.faults.get(match[3]) if match else None
        if fault and (self.command not in fault.methods or fault.times <= 0):
            fault = None
        fault = fault or Fault()
        fault.times -= 1
        time.sleep(fault.hang)
        if match is None:
            self._send(404, {}, b"", fault, request, body_wanted)
        elif fault.status != 200:
            self._send(fault.status, fault.headers, fault.body or b"", fault, request, body_wanted)
        else:
            self._file(*match.groups(), fault, request, body_wanted)

    def _file(self, repo_id, revision, file, fault, request, body_wanted):
        revisions = self.hub.repos.get(repo_id)
        if revisions is None or (self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}"):
            # As the hub does: a private repo looks like a missing one.
            self._send(401, {"X-Error-Code": "RepoNotFound"}, b"", fault, request, body_wanted)
            return
        if revision not in revisions:
            self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"", fault, request, body_wanted)
            return
        commit, files = revisions[revision]
        if file not in files:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            self._send(404, headers, b"", fault, request, body_wanted)
            return
        body = files[file] if fault.body is None else fault.body
        headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": commit}
        status = 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked and not fault.ignore_range:
            begin, end = int(asked[1]), min(int(asked[2]), len(body) - 1)
            if begin >= len(body):
                self._send(416, {"Content-Range": f"bytes */{len(body)}"}, b"", fault, request, body_wanted)
                return
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(body)}"
            body, status = body[begin : end + 1], 206
        self._send(status, {**headers, **fault.headers}, body, fault, request, body_wanted)

    def _send(self, status, headers, body, fault, request, body_wanted):
        self.send_response(status)
        all_headers = {"Content-Length": str(len(body)), **headers}
        for name, value in all_headers.items():
            if name not in fault.drop:
                self.send_header(name, value)
        if "Content-Length" in fault.drop:
            self.close_connection = True
        self.end_headers()
        if not body_wanted:
            return
        cut = len(body) if fault.cut_after is None else fault.cut_after
        try:
            for begin in range(0, min(cut, len(body)), 65536):
                piece = body[begin : min(begin + 65536, cut)]
                self.wfile.write(piece)
                request.sent.append(len(piece))
        except OSError:
            self.close_connection = True
        if cut < len(body):
            self.close_connection = True
