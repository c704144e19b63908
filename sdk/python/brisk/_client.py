"""Brisk's HTTP API, version 1, as Python calls. docs/design/architecture.md is the contract.

Failures come as the exceptions of brisk.exception. There is no overall deadline on builds and calls, which the server
bounds itself; but whenever it has been silent for a while, the client asks on another connection whether it still
lives, so that a hung server is an error and not a hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, NoReturn, Optional, Union
from urllib.parse import quote

from brisk import exception
from brisk._http import Body, Pool, Response

DEFAULT_SOCKET = "/run/brisk/default/api.sock"
DEFAULT_WORKSPACE = "default"
SILENCE = 30.0  # seconds that the server may be silent before it is asked whether it lives
PROBE = 10.0  # seconds that it then has to answer
_BUILD_LOG = 64 << 10  # bytes kept of a step's output, for the error

OnLog = Callable[[str, bytearray], None]  # stream ("stdout" or "stderr"), bytes


@dataclass(frozen=True)
class Returned:
    """A call's pickled result; ms is the time that it ran in milliseconds."""

    call: str
    payload: bytearray
    ms: float


@dataclass(frozen=True)
class Raised:
    """What a call raised: as text in error (type, module, message, traceback, kind), and pickled if it could be."""

    call: str
    payload: bytearray
    error: Mapping[str, str] = field(default_factory=dict)


class BuildObserver:
    """Is told how a build goes; this one ignores it."""

    def step(self, index: int, total: int, text: str, cached: bool) -> None:
        """A step begins; index counts from 1."""

    def log(self, data: bytes) -> None:
        """The step's output."""

    def progress(self, text: str) -> None:
        """What the step is at."""


class Client:
    """One server and one workspace in it. Safe for use by many threads."""

    def __init__(self, socket: Optional[str] = None, workspace: Optional[str] = None) -> None:
        """Nothing is connected until it is needed.

        Args:
            socket: the server's socket; default $BRISK_SOCKET, else that of the default data directory.
            workspace: default $BRISK_WORKSPACE, else "default".
        """
        self.socket = socket or os.environ.get("BRISK_SOCKET") or DEFAULT_SOCKET
        self.workspace = workspace or os.environ.get("BRISK_WORKSPACE") or DEFAULT_WORKSPACE
        self._pool = Pool(self.socket, SILENCE)
        self._prefix = "/v1/w/" + quote(self.workspace, safe="")

    def close(self) -> None:
        """Close idle connections."""
        self._pool.close()

    def abort(self) -> None:
        """Cancel all that is going on in any thread, and refuse all that is new; for signal handlers."""
        self._pool.abort()

    def info(self) -> dict[str, Any]:
        """Describe the server: version, pid, data, workspaces, node, started."""
        with self._pool.exchange("GET", "/v1/info") as response:
            return _answer(response)

    def has_blob(self, digest: str) -> bool:
        """Whether the server has this content already.

        Args:
            digest: "sha256:" and 64 hexadecimal digits.
        """
        with self._pool.exchange("HEAD", f"{self._prefix}/blobs/{digest}") as response:
            if response.status in (200, 204):
                return True
            if response.status == 404:
                return False
        raise exception.InternalError(f"the server answered {response.status} when asked for {digest}")

    def put_blob(self, digest: str, file: BinaryIO, size: int) -> None:
        """Upload content unless the server has it.

        Args:
            digest: as in has_blob.
            file: read from its start.
            size: bytes.
        """
        if self.has_blob(digest):
            return
        with self._pool.exchange("PUT", f"{self._prefix}/blobs/{digest}", file=(file, size)) as response:
            _check(response)

    def build_image(self, definition: Mapping[str, Any], observer: Optional[BuildObserver] = None) -> str:
        """Build an image, or find it built.

        Args:
            definition: as the API takes it; its blobs are uploaded already.
            observer: is told how it goes.

        Returns:
            The image's digest.

        Raises:
            exception.BuildError: a step failed; it carries the end of that step's output.
        """
        observer = observer or BuildObserver()
        step, log = "", bytearray()
        with self._stream("/images/build", _json(definition)) as frames:
            for frame, payload in frames:
                kind = frame["type"]
                if kind == "step":
                    step, log = str(frame["text"]), bytearray()
                    observer.step(frame["index"], frame["total"], step, bool(frame.get("cached")))
                elif kind == "log":
                    log += payload
                    del log[:-_BUILD_LOG]
                    observer.log(bytes(payload))
                elif kind == "progress":
                    observer.progress(str(frame.get("text", "")))
                elif kind == "done":
                    return str(frame["digest"])
                elif kind == "error":
                    error = exception.from_api(frame["error"])
                    if isinstance(error, exception.BuildError):
                        error.step, error.log = step, log.decode("utf-8", "replace")
                    raise error
        raise _cut_off()

    def create_function(self, definition: Mapping[str, Any]) -> str:
        """Register a function; again is no change.

        Args:
            definition: as the API takes it.

        Returns:
            The function's digest.
        """
        with self._pool.exchange("POST", f"{self._prefix}/functions", body=_json(definition)) as response:
            return str(_answer(response)["function"])

    def call(self, function: str, app: str, payload: Body, on_log: OnLog) -> Union[Returned, Raised]:
        """Call a function and wait for its end. Leaving early, by an exception of on_log too, cancels the call.

        Args:
            function: its digest.
            app: the calling app's name, for the records.
            payload: the pickled (args, kwargs).
            on_log: takes what the function writes while it runs.

        Raises:
            exception.Error: the call failed for a reason other than an exception of the function's.
        """
        with self._stream(f"/functions/{function}/call", payload, (("Brisk-App", app),)) as frames:
            for frame, data in frames:
                kind = frame["type"]
                if kind == "log":
                    on_log(frame["stream"], data)
                elif kind == "result":
                    return Returned(frame["call"], data, float(frame.get("ms", 0)))
                elif kind == "exception":
                    return Raised(frame["call"], data, frame["error"])
                elif kind in ("failed", "error"):
                    raise exception.from_api(frame["error"])
        raise _cut_off()

    @contextlib.contextmanager
    def _stream(
        self, target: str, body: Body, headers: tuple[tuple[str, str], ...] = ()
    ) -> Iterator[Iterator[tuple[dict[str, Any], bytearray]]]:
        """POST, and give the frames of the answer as they come, each with its raw bytes."""
        with self._pool.exchange("POST", self._prefix + target, headers, body, on_silence=self._probe) as response:
            _check(response)
            yield _frames(response)

    def _probe(self) -> None:
        pool = Pool(self.socket, PROBE)
        try:
            with pool.exchange("GET", "/v1/info") as response:
                _check(response)
        finally:
            pool.close()


def _frames(response: Response) -> Iterator[tuple[dict[str, Any], bytearray]]:
    while True:
        line = response.readline()
        if not line:
            return
        try:
            frame = json.loads(line)
            kind, size = frame["type"], frame.get("len", 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            kind, size = None, -1
        if not isinstance(kind, str) or not isinstance(size, int) or size < 0:
            raise exception.CorruptError(f"the server sent what is not a frame: {line[:60]!r}")
        yield frame, response.read(size) if size else bytearray()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _check(response: Response) -> None:
    """Raise what an error response says."""
    if response.status >= 400:
        _fail(response)


def _fail(response: Response) -> NoReturn:
    body = response.read_rest()
    try:
        error = json.loads(body)["error"]
        assert isinstance(error, dict)
    except Exception:
        raise exception.InternalError(f"the server answered {response.status}: {body[:200]!r}") from None
    raise exception.from_api(error)


def _answer(response: Response) -> dict[str, Any]:
    _check(response)
    try:
        answer = json.loads(response.read_rest())
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise exception.CorruptError("the server's answer is not the JSON object that it should be")
    return answer


def _cut_off() -> exception.Error:
    return exception.ConnectionError("the Brisk server's answer ended before it was complete")


_default: Optional[Client] = None
_default_lock = threading.RLock()  # a signal handler may ask while this thread holds it


def default_client() -> Client:
    """The process's client, by the environment."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Client()
        return _default
