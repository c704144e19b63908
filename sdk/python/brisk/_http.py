"""HTTP/1.1 over a unix socket: as much of it as Brisk's server speaks.

http.client parses headers as if they were mail, which doubles what a call costs here: against a server that answers at
once, a whole call takes 70 us with this and 137 us with that. Bodies of answers are read into the caller's memory, so
that a large result is copied once.

A Connection is used by one thread at a time; the Pool hands them out.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Callable, Optional, TypeVar, Union

from brisk import exception

Body = Union[bytes, bytearray, memoryview]
_T = TypeVar("_T")

_LINE = 16 << 20  # bytes of the longest line that a peer may send: a frame with a traceback, escaped
_BUFFER = 64 << 10  # bytes, and of the longest line of a header section
_SLICE = 1 << 20


class Silence(Exception):
    """The peer has sent nothing for the connection's timeout."""


class Dropped(Exception):
    """The peer has closed the connection."""


class Connection:
    """One connection to the server."""

    def __init__(self, path: str, timeout: float) -> None:
        """Connect.

        Args:
            path: the server's socket.
            timeout: seconds that connecting, or the peer's silence, may last.

        Raises:
            exception.ConnectionError: nobody listens there.
        """
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(timeout)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        try:
            self._sock.connect(path)
        except OSError as exc:
            self._sock.close()
            raise exception.ConnectionError(
                f"no Brisk server answers on {path}: {exc.strerror or exc}", hint="Start one with `brisk up`."
            ) from None
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)

    def close(self) -> None:
        self._sock.close()

    def abort(self) -> None:
        """End the connection under another thread that is using it."""
        with contextlib.suppress(OSError):  # it may have ended by itself
            self._sock.shutdown(socket.SHUT_RDWR)

    def is_fresh(self) -> bool:
        """Whether the connection can take a request: nothing has come unasked for, a close least of all."""
        return self._start == self._end and not self._poll.poll(0)

    def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: Optional[Body] = None,
        file: Optional[tuple[BinaryIO, int]] = None,
        timeout: float = 30.0,
    ) -> None:
        """Send a request; a Response then reads the answer.

        Args:
            method, target, headers: as they go on the wire.
            body: the whole body, or
            file: an open file and how many bytes of it, from its start, are the body.
            timeout: seconds of silence after which Silence is raised, here or while the answer is read.

        Raises:
            Silence: the server took nothing for that long.
        """
        size = file[1] if file else len(body or b"")
        lines = [f"{method} {target} HTTP/1.1\r\nHost: brisk\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers]
        if size or method in ("POST", "PUT"):
            lines.append(f"Content-Length: {size}\r\n")
        head = "".join(lines).encode("ascii") + b"\r\n"
        self._sock.settimeout(timeout)
        try:
            if body is not None and size <= _BUFFER:
                self._sock.sendall(head + body)
            else:
                self._sock.sendall(head)
                if body is not None:
                    with memoryview(body) as view:
                        for at in range(0, size, _SLICE):
                            self._sock.sendall(view[at : at + _SLICE])
                elif file is not None:
                    file[0].seek(0)
                    self._sock.sendfile(file[0], 0, size)
        except socket.timeout:
            raise Silence from None
        except OSError:
            pass  # the server may have refused before it read everything: its answer says why

    # Reading, for Response

    def fill(self) -> None:
        """Receive more; the buffer keeps what has not been taken."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            kept = self._buffer[self._start : self._end]
            self._view[: len(kept)] = kept
            self._start, self._end = 0, len(kept)
        self._end += self._receive(self._view[self._end :])

    def _receive(self, view: memoryview) -> int:
        try:
            n = self._sock.recv_into(view)
        except socket.timeout:
            raise Silence from None
        except OSError:
            n = 0
        if n == 0:
            raise Dropped
        return n

    def line(self) -> bytes:
        """The next line, without its end (LF or CR LF). Silence loses nothing of it."""
        while True:
            at = self._buffer.find(b"\n", self._start, self._end)
            if at >= 0:
                break
            if self._end - self._start == len(self._buffer):
                raise exception.CorruptError("what answers on the socket does not speak HTTP: its lines do not end")
            self.fill()
        out = bytes(self._view[self._start : at])
        self._start = at + 1
        return out[:-1] if out.endswith(b"\r") else out

    def until_newline(self, most: int) -> bytes:
        """What is here of the next line, its LF included, at least a byte and at most most."""
        if self._start == self._end:
            self.fill()
        stop = min(self._end, self._start + most)
        at = self._buffer.find(b"\n", self._start, stop)
        out = bytes(self._view[self._start : stop if at < 0 else at + 1])
        self._start += len(out)
        return out

    def into(self, view: memoryview) -> int:
        """Some bytes, at least one, at most as many as view holds."""
        have = self._end - self._start
        if have == 0:
            if len(view) >= _BUFFER:
                return self._receive(view[:_SLICE])
            self.fill()
            have = self._end - self._start
        n = min(have, len(view))
        view[:n] = self._view[self._start : self._start + n]
        self._start += n
        return n


class Response:
    """The answer to a request: status and headers at once, the body as it is asked for.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, connection: Connection, method: str, on_silence: Optional[Callable[[], None]] = None) -> None:
        """Read the head of the answer.

        Args:
            connection: where the request was sent.
            method: of the request.
            on_silence: called each time the peer has been silent for the timeout; it raises to give up. Without it,
                silence is an exception.TimeoutError.
        """
        self._connection = connection
        self._on_silence = on_silence
        self.status, headers = self._head()
        while self.status == 100:
            self.status, headers = self._head()
        self._keep = headers.get(b"connection", b"").lower() != b"close"
        self._chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._left = 0  # bytes to come of the body, or of the current chunk
        self._within = False  # a chunk has been begun, and its end not been read
        self._finished = False
        if method == "HEAD" or self.status in (204, 304):
            self._finished = True
        elif not self._chunked:
            length = headers.get(b"content-length", b"")
            if not length.isdigit():
                raise exception.CorruptError("the server's answer has no length")
            self._left = int(length)
            self._finished = self._left == 0

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        words = self._line().split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise exception.CorruptError("what answers on the socket does not speak HTTP")
        headers: dict[bytes, bytes] = {}
        while True:
            line = self._line()
            if not line:
                return int(words[1]), headers
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()

    def readline(self) -> bytes:
        """The next line of the body without its LF; b"" with nothing after it is the end."""
        line = bytearray()
        while self._more():
            piece = self._patiently(lambda: self._connection.until_newline(self._left))
            self._take(len(piece))
            line += piece
            if line.endswith(b"\n"):
                return bytes(line[:-1])
            if len(line) > _LINE:
                raise exception.CorruptError(f"the server sent a line of more than {_LINE} bytes")
        if line:
            raise exception.CorruptError("the server's answer ended within a line")
        return b""

    def read(self, count: int) -> bytearray:
        """Exactly count bytes of the body, in memory once."""
        out = bytearray(count)
        with memoryview(out) as view:
            have = 0
            while have < count:
                if not self._more():
                    raise exception.CorruptError("the server's answer ended too early")
                with view[have : have + self._left] as rest:
                    n = self._patiently(lambda: self._connection.into(rest))  # called at once
                self._take(n)
                have += n
        return out

    def read_rest(self) -> bytes:
        """All that is left of a small body."""
        out = b""
        while self._more():
            out += self.read(self._left)
        return out

    def finish(self) -> bool:
        """Skip what is left of the body; tell whether the connection can carry another request."""
        while self._more():
            self.read(min(self._left, _SLICE))
        return self._keep

    def _more(self) -> bool:
        """Whether the body goes on; then at least a byte of it is to come. Waits for the next chunk."""
        if self._finished or self._left:
            return not self._finished
        if self._within:
            self._line()
            self._within = False
        size = self._line().split(b";", 1)[0].strip()
        try:
            self._left = int(size, 16) if size.isalnum() else -1
        except ValueError:
            self._left = -1
        if self._left < 0:
            raise exception.CorruptError("the server's answer is not in chunks, though it said so")
        self._within = self._left > 0
        if not self._within:
            while self._line():
                pass
            self._finished = True
        return not self._finished

    def _line(self) -> bytes:
        return self._patiently(self._connection.line)

    def _take(self, n: int) -> None:
        self._left -= n
        if self._left == 0 and not self._chunked:
            self._finished = True

    def _patiently(self, read: Callable[[], _T]) -> _T:
        while True:
            try:
                return read()
            except Silence:
                if self._on_silence is None:
                    raise exception.TimeoutError(
                        "the Brisk server does not answer", hint="Its log in the data directory may say why."
                    ) from None
                self._on_silence()
            except Dropped:
                raise exception.ConnectionError(
                    "the Brisk server closed the connection before its answer was complete",
                    hint="If it has died, its log in the data directory says why.",
                ) from None


class Pool:
    """Connections to one server, kept alive between requests; safe for use by many threads and after a fork."""

    def __init__(self, path: str, timeout: float = 30.0, keep: int = 8) -> None:
        """Nothing is connected until it is needed.

        Args:
            path: the server's socket.
            timeout: seconds of silence that a request bears by default.
            keep: idle connections at most.
        """
        self.path = path
        self.timeout = timeout
        self._keep = keep
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._aborted = False

    def close(self) -> None:
        """Close what is idle; the pool can still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def abort(self) -> None:
        """End what other threads are waiting for, with an exception.CancelledError there, and refuse all that is new.

        It takes no lock, so that a signal handler can call it.
        """
        self._aborted = True
        for connection in list(self._busy):
            connection.abort()

    @contextlib.contextmanager
    def exchange(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: Optional[Body] = None,
        file: Optional[tuple[BinaryIO, int]] = None,
        on_silence: Optional[Callable[[], None]] = None,
    ) -> Iterator[Response]:
        """Send a request; the connection goes back to the pool when the block is left without an exception.

        With one, it is closed, which tells the server that nobody waits any more.

        Args:
            method, target, headers, body, file: see Connection.request.
            on_silence: see Response.

        Raises:
            exception.ConnectionError: nobody answers.
            exception.TimeoutError: nothing came for the pool's timeout.
            exception.CancelledError: the pool was aborted.
        """
        connection = self._take()
        self._busy.add(connection)
        try:
            if self._aborted:  # since _take looked, and too early to be found among the busy ones
                raise exception.CancelledError("interrupted")
            try:
                connection.request(method, target, headers, body, file, self.timeout)
            except Silence:
                raise exception.TimeoutError(
                    f"the Brisk server has not read a request for {self.timeout:g} s"
                ) from None
            response = Response(connection, method, on_silence)
            yield response
            reusable = response.finish()
        except BaseException as exc:
            connection.close()
            if self._aborted and isinstance(exc, exception.ConnectionError):
                raise exception.CancelledError("interrupted") from None
            raise
        finally:
            self._busy.discard(connection)
        if reusable:
            self._put(connection)
        else:
            connection.close()

    def _take(self) -> Connection:
        while True:
            if self._aborted:
                raise exception.CancelledError("interrupted")
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return Connection(self.path, self.timeout)
            if connection.is_fresh():
                return connection
            connection.close()

    def _put(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        connection.close()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_connections() -> None:
    """A forked child shares its parent's sockets: it must not use them."""
    for pool in _pools:
        pool._reset()


os.register_at_fork(after_in_child=_forget_connections)
