"""The server: routes, and what they keep."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import socketserver
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from tests.fakeserver.call import run_call


@dataclass
class Reply:
    """An answer: JSON, or a stream whose pieces go out as chunks of their own; cut ends it without its end."""

    status: int = 200
    json: Any = None
    stream: Optional[Iterable[bytes]] = None
    cut: bool = False
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    match: re.Match[str]


Route = Callable[[Request], Optional[Reply]]


def frame(kind: str, payload: Optional[bytes] = None, **fields: Any) -> bytes:
    """A frame of a stream, with its payload if it has one."""
    head: dict[str, Any] = {"type": kind, **fields}
    if payload is not None:
        head["len"] = len(payload)
    return json.dumps(head).encode() + b"\n" + (payload or b"")


class FakeServer:
    """Serves until close.

    Attributes:
        requests: method and path of each request, in order.
        blobs, functions, images: what was uploaded, registered and built (definitions), by digest.
        replace: answers by "METHOD /path/regex", tried before the server's own; a function that returns None passes.
        cancelled: is set when a caller went away during a call.
    """

    def __init__(self, directory: Path) -> None:
        self.socket = str(directory / "api.sock")
        self.directory = directory
        self.requests: list[str] = []
        self.connections = 0
        self.blobs: dict[str, bytes] = {}
        self.functions: dict[str, dict[str, Any]] = {}
        self.images: dict[str, dict[str, Any]] = {}
        self.replace: dict[str, Route] = {}
        self.cancelled = threading.Event()
        self._calls = 0
        self._lock = threading.Lock()
        self._routes: list[tuple[str, Route]] = [
            (r"GET /v1/info", self._info),
            (r"HEAD /v1/w/default/blobs/(sha256:[0-9a-f]{64})", self._has_blob),
            (r"PUT /v1/w/default/blobs/(sha256:[0-9a-f]{64})", self._put_blob),
            (r"POST /v1/w/default/images/build", self._build),
            (r"POST /v1/w/default/functions", self._create_function),
            (r"POST /v1/w/default/functions/([0-9a-f]{64})/call", self._call),
        ]
        self._server = _Server(self.socket, _Handler)
        self._server.fake = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Reply:
        line = f"{method} {path}"
        self.requests.append(line)
        for pattern, route in [*self.replace.items(), *self._routes]:
            match = re.fullmatch(pattern, line)
            if match:
                reply = route(Request(method, path, headers, body, match))
                if reply is not None:
                    return reply
        return error(404, "not_found", f"no route {line}")

    def _info(self, _request: Request) -> Reply:
        return Reply(json={"version": "fake", "pid": 1, "data": "", "workspaces": ["default"], "node": "fake"})

    def _has_blob(self, request: Request) -> Reply:
        return Reply(200 if request.match[1] in self.blobs else 404)

    def _put_blob(self, request: Request) -> Reply:
        if "sha256:" + hashlib.sha256(request.body).hexdigest() != request.match[1]:
            return error(400, "invalid", "the content does not match its digest")
        self.blobs[request.match[1]] = request.body
        return Reply(204)

    def _build(self, request: Request) -> Reply:
        definition = json.loads(request.body)
        digest = hashlib.sha256(request.body).hexdigest()
        cached = digest in self.images
        self.images[digest] = definition
        texts = [definition["base"]["kind"], *(step["kind"] for step in definition["steps"])]
        frames = [
            frame("step", index=i + 1, total=len(texts), text=text, cached=cached) for i, text in enumerate(texts)
        ]
        return Reply(stream=[*frames, frame("done", digest=digest)])

    def _create_function(self, request: Request) -> Reply:
        digest = hashlib.sha256(request.body).hexdigest()
        self.functions[digest] = json.loads(request.body)
        return Reply(json={"function": digest})

    def _call(self, request: Request) -> Reply:
        definition = self.functions.get(request.match[1])
        if definition is None:
            return error(404, "not_found", f"no function {request.match[1]}")
        with self._lock:
            self._calls += 1
            ident = f"c{self._calls}"
        directory = self.directory / ident
        directory.mkdir()
        return Reply(stream=run_call(directory, ident, definition, self.blobs, request.body))


def error(status: int, kind: str, message: str, hint: str = "") -> Reply:
    return Reply(status, json={"error": {"class": kind, "message": message, "hint": hint}})


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    fake: FakeServer

    def get_request(self) -> Any:
        self.fake.connections += 1
        sock, _ = super().get_request()
        return sock, ("unix", 0)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        traceback.print_exc()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reply = self.server.fake.answer(self.command, self.path, dict(self.headers.items()), body)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.stream is not None:
            self._stream(iter(reply.stream), reply.cut)
            return
        data = b"" if reply.json is None else json.dumps(reply.json).encode()
        if reply.status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, pieces: Iterator[bytes], cut: bool) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in pieces:
                if piece:
                    self.wfile.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        except ConnectionError:
            self.server.fake.cancelled.set()
            raise
        finally:
            if hasattr(pieces, "close"):
                pieces.close()
        if cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_HEAD = do_PUT = do_POST = _any

    def log_message(self, format: str, *args: Any) -> None:
        pass
