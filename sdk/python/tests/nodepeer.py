"""The node's side of the runner protocol, and the runner as a process."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Optional

SDK = Path(__file__).resolve().parent.parent
PREFIX = struct.Struct("<2sBBIQ")
_numbers = itertools.count()
DEADLINE = 60.0  # seconds; only a broken runner waits for it

IDENTITY = {"instance": "i-1", "workspace": "default", "app": "tests", "function": "f", "node": "here"}


class Peer:
    """Listens, starts a runner, and talks to it."""

    def __init__(
        self,
        directory: Path,
        code: Path,
        cwd: Optional[Path] = None,
        env: Optional[dict[str, str]] = None,
        start: Optional[list[str]] = None,
    ) -> None:
        self.path = str(directory / f"r{next(_numbers)}.sock")
        self.connection: Optional[socket.socket] = None
        self.listener: Optional[socket.socket] = None
        self.listen()
        self.process = subprocess.Popen(
            [sys.executable, *(start or [str(SDK / "brisk" / "_runner.py")])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd or directory,
            env={
                "PATH": os.environ["PATH"],
                **({"PYTHONPATH": str(SDK)} if start else {}),
                "PYTHONDONTWRITEBYTECODE": "1",
                "BRISK_RUNNER_SOCKET": self.path,
                "BRISK_RUNNER_CODE": str(code),
                **(env or {}),
            },
        )
        self.output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.on_output: Callable[[str, bytes], object] = lambda stream, data: self.output[stream].extend(data)
        self._drains = [
            threading.Thread(target=self._drain, args=("stdout", self.process.stdout), daemon=True),
            threading.Thread(target=self._drain, args=("stderr", self.process.stderr), daemon=True),
        ]
        for drain in self._drains:
            drain.start()

    def _drain(self, name: str, pipe: Any) -> None:
        while data := os.read(pipe.fileno(), 65536):
            self.on_output(name, data)

    def listen(self) -> None:
        self.unlisten()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(DEADLINE)
        self.listener.bind(self.path)
        self.listener.listen()

    def unlisten(self) -> None:
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.close()
            # Whoever drives the call and whoever reads its output both close.
            Path(self.path).unlink(missing_ok=True)

    def accept(self) -> dict[str, Any]:
        assert self.listener is not None
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(DEADLINE)
        hello, _ = self.receive()
        return hello

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        assert self.connection is not None
        head = json.dumps(header).encode()
        self.connection.sendall(b"".join((PREFIX.pack(b"BR", 1, 0, len(head), len(payload)), head, payload)))

    def receive(self) -> tuple[dict[str, Any], bytes]:
        magic, version, zero, head, size = PREFIX.unpack(self._take(PREFIX.size))
        assert (magic, version, zero) == (b"BR", 1, 0)
        assert head <= 1 << 20
        return json.loads(self._take(head)), self._take(size)

    def _take(self, count: int) -> bytes:
        assert self.connection is not None
        out = bytearray(count)
        view, have = memoryview(out), 0
        while have < count:
            n = self.connection.recv_into(view[have:])
            if n == 0:
                raise EOFError
            have += n
        return bytes(out)

    def load(
        self, module: str, qualname: str, env: Optional[dict[str, str]] = None, pickled: Optional[bytes] = None
    ) -> dict[str, Any]:
        header = {
            "type": "load",
            "module": module,
            "qualname": qualname,
            "serialized": pickled is not None,
            "env": env or {},
            "identity": IDENTITY,
        }
        self.send(header, pickled or b"")
        return self.receive()[0]

    def call(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], bytes]:
        return self.call_raw(pickle.dumps((args, kwargs), protocol=5))

    def call_raw(self, payload: bytes) -> tuple[dict[str, Any], bytes]:
        self.send({"type": "call", "id": "c-1", "deadline_ms": 60000}, payload)
        header, data = self.receive()
        assert header["id"] == "c-1"
        assert header["ms"] >= 0
        return header, data

    def result(self, *args: Any, **kwargs: Any) -> Any:
        header, data = self.call(*args, **kwargs)
        assert header["type"] == "result", header
        return pickle.loads(data)

    def error(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        header, _ = self.call(*args, **kwargs)
        assert header["type"] == "exception", header
        error: dict[str, str] = header["error"]
        return error

    def exit(self) -> int:
        self.send({"type": "exit"})
        return self.wait()

    def wait(self) -> int:
        """The exit code, once all output has been taken."""
        code = self.process.wait(DEADLINE)
        for drain in self._drains:
            drain.join(DEADLINE)
        return code

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.unlisten()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
