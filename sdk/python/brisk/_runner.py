"""The process inside a sandbox: imports the user's function, then answers calls.

Run as ``python3 -m brisk._runner``, or better by its path: with -m a file of the working directory that has the name
of one of the modules below would be imported in its place. It dials the node's unix socket and speaks the runner
protocol, version 1 (docs/design/architecture.md); standard output and error are the sandbox's pipes and carry nothing
of the protocol.

Every module imported here is paid for by each cold start without a snapshot, so this file imports nothing of
``brisk`` and little of the standard library; what only a failure needs is imported when it is needed, or while
parking, where nobody waits.

The connection is the runner's alone: no child process inherits it, a forked child drops it, and it is never one of
the descriptors 0 to 2 that user code may write to.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import socket
import struct
import sys
import time
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn, Optional

SOCKET = "/run/brisk/runner.sock"
CODE = "/opt/brisk/code"
REDIAL = 0.002  # seconds between two attempts to dial

PREFIX = struct.Struct("<2sBBIQ")
MAGIC = b"BR"
VERSION = 1
MAX_HEADER = 1 << 20
MAX_PAYLOAD = 1 << 30
SLICE = 1 << 20  # bytes handed to the kernel at once
SMALL = 1 << 16  # a payload up to this size travels in one piece with its header

# Bounds of what an exception may send. JSON can make six bytes of one character, and a header holds 1 MiB.
MAX_TRACEBACK = 100_000  # characters
MAX_MESSAGE = 20_000  # characters
MAX_EXCEPTION = 16 << 20  # bytes of a pickled exception; a larger one travels as text only

CO_COROUTINE = 0x80


class Disconnected(Exception):
    """The node has closed the connection."""


class Malformed(Exception):
    """What came is not a frame of this protocol."""


class Connection:
    """The stream to the node: frames out, frames in, one thread."""

    def __init__(self, path: str, generation: int) -> None:
        """Dial until somebody answers: there may be nobody for as long as a checkpoint lies on a disk."""
        self.generation = generation
        self.buffer = bytearray(SMALL)
        self.start = self.end = 0  # what of the buffer has been received and not yet taken
        while True:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self.sock.connect(path)
                return
            except OSError:
                self.sock.close()
                time.sleep(REDIAL)

    def close(self) -> None:
        self.sock.close()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        prefix = PREFIX.pack(MAGIC, VERSION, 0, len(head), len(payload))
        if len(payload) <= SMALL:
            self.sock.sendall(b"".join((prefix, head, payload)))
            return
        self.sock.sendall(prefix + head)
        with memoryview(payload) as view:
            for at in range(0, len(view), SLICE):
                self.sock.sendall(view[at : at + SLICE])

    def receive(self) -> tuple[dict[str, Any], bytearray]:
        prefix = self._take(PREFIX.size)
        magic, version, zero, head, size = PREFIX.unpack(prefix)
        if magic != MAGIC or version != VERSION or zero != 0 or head > MAX_HEADER or size > MAX_PAYLOAD:
            raise Malformed(f"not a frame of version {VERSION}: {bytes(prefix)!r}")
        header = json.loads(self._take(head))
        return header, self._take(size)

    def _take(self, count: int) -> bytearray:
        """Exactly count bytes: from the buffer as far as it goes, then straight into their place."""
        if self.end == self.start and 0 < count < len(self.buffer):
            self.start, self.end = 0, self._read(memoryview(self.buffer))
        have = min(count, self.end - self.start)
        out = self.buffer[self.start : self.start + have]
        self.start += have
        if have < count:
            out += bytes(count - have)
            with memoryview(out) as view:
                while have < count:
                    have += self._read(view[have : have + SLICE])
        return out

    def _read(self, view: memoryview) -> int:
        n = self.sock.recv_into(view)
        if n == 0:
            raise Disconnected
        return n


class Failure(Exception):
    """Something that the node reports to the caller instead of a result."""

    def __init__(self, kind: str, cause: BaseException, message: str = "", payload: bytes = b"") -> None:
        self.error = describe(cause, kind, message)
        self.payload = payload


def describe(exc: BaseException, kind: str, message: str = "") -> dict[str, str]:
    """Text that describes an exception, bounded, without the runner's own frames."""
    import traceback

    tb = exc.__traceback__
    while tb is not None and is_plumbing(tb.tb_frame):
        tb = tb.tb_next
    try:
        text = "".join(traceback.format_exception(type(exc), exc, tb))
    except BaseException as broken:  # the user's __str__ and __notes__ run here
        text = f"{type(exc).__name__}: <no traceback: formatting it raised {type(broken).__name__}>\n"
    if not message:
        try:
            message = str(exc)
        except BaseException:
            message = "<its str() failed>"
    return {
        "type": type(exc).__qualname__,
        "module": str(type(exc).__module__),
        "message": shorten(message, MAX_MESSAGE),
        "traceback": shorten(text, MAX_TRACEBACK),
        "kind": kind,
    }


def is_plumbing(frame: types.FrameType) -> bool:
    """Whether a frame above the user's code is none of the user's business."""
    name = str(frame.f_globals.get("__name__"))
    return frame.f_code.co_filename == __file__ or name.startswith(("brisk._", "asyncio."))


def shorten(text: str, limit: int) -> str:
    """text without its middle, if it is too long: its ends say most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()  # type: ignore[union-attr]  # the user may have put anything there, None too
        except Exception:
            pass


class Environment:
    """What the host gives to os.environ, told apart from what the image and the user's code put there."""

    def __init__(self) -> None:
        self.given: dict[str, str] = {}

    def take(self, env: dict[str, str], identity: dict[str, str]) -> None:
        """Put the host's variables in place of those it gave before; the user's own changes stay."""
        new = {f"BRISK_{key.upper()}": value for key, value in identity.items()}
        new.update(env)
        for key, value in self.given.items():
            if key not in new and os.environ.get(key) == value:
                del os.environ[key]
        for key, value in new.items():
            if self.given.get(key) != value:
                os.environ[key] = value
        self.given = new


def reseed(seed: bytes) -> None:
    """Make the generators of this clone differ from those of all others made from the same snapshot.

    os.urandom needs no help. OpenSSL's generator lives in memory, so it does.
    """
    modules = sys.modules
    if "random" in modules:
        modules["random"].seed(seed)
    if "numpy.random" in modules:
        modules["numpy.random"].seed(list(struct.unpack("<8I", seed)))
    if "torch" in modules and hasattr(modules["torch"], "manual_seed"):
        modules["torch"].manual_seed(int.from_bytes(seed[:8], "little") >> 1)
    if "_ssl" in modules:
        modules["_ssl"].RAND_add(seed, float(len(seed)))


# Called after every restore, before the next call; private until there is a public way to add to it.
on_restore: list[Callable[[], object]] = []


class Runner:
    """One function, loaded once, called one call at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pid = os.getpid()
        self.environment = Environment()
        self.function: Optional[Callable[..., Any]] = None
        self.by_value = False  # results are pickled by value, as the function was
        self.connection = Connection(path, 1)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.connection.close()

    def serve(self) -> int:
        self.hello("start")
        while True:
            try:
                header, payload = self.connection.receive()
            except Disconnected:
                return 0
            kind = header["type"]
            if kind == "call":
                self.call(header["id"], payload)
            elif kind == "load":
                if not self.load(header, payload):
                    return 1
            elif kind == "park":
                self.park()
            elif kind == "resume":
                self.resume(header)
            elif kind == "exit":
                flush()
                return 0
            else:
                raise Malformed(f"unknown message {kind!r}")

    def hello(self, phase: str) -> None:
        self.connection.send(
            {
                "type": "hello",
                "generation": str(self.connection.generation),
                "phase": phase,
                "pid": self.pid,
                "python": ".".join(map(str, sys.version_info[:3])),
            }
        )

    # Loading

    def load(self, header: dict[str, Any], payload: bytearray) -> bool:
        began = time.perf_counter()
        self.environment.take(header.get("env") or {}, header.get("identity") or {})
        try:
            if header.get("serialized"):
                function = self.unpickle_function(payload)
                self.by_value = True
            else:
                function = import_function(header["module"], header["qualname"])
        except Failure as failure:
            flush()
            self.connection.send({"type": "load_failed", "error": failure.error})
            return False
        self.function = function
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & CO_COROUTINE:
            import asyncio  # noqa: F401  # it will be needed: better in the snapshot than in a call
        flush()
        self.connection.send({"type": "loaded", "ms": milliseconds(began)})
        return True

    def unpickle_function(self, payload: bytearray) -> Callable[..., Any]:
        # What user code finds as __main__ must not be this runner: classes that were defined in an interactive
        # session are looked up there.
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            function = pickle.loads(payload)
        except BaseException as exc:
            kind = "import" if isinstance(exc, ImportError) else "unpickle"
            raise Failure(kind, exc) from None
        return plain(function)

    # Snapshots

    def park(self) -> None:
        """Let go of the node, and dial again: a checkpoint may be taken, and restored elsewhere, meanwhile."""
        import traceback  # noqa: F401  # so that a failure after the restore does not read it from the image

        gc.collect()
        gc.freeze()  # what is here now stays: later collections need not touch its pages
        flush()
        self.connection.close()
        self.connection = Connection(self.path, self.connection.generation + 1)
        self.hello("restored")

    def resume(self, header: dict[str, Any]) -> None:
        self.environment.take(header.get("env") or {}, header.get("identity") or {})
        reseed(bytes.fromhex(header["seed"]))
        skew = (time.time_ns() - header["time_ns"]) / 1e9
        if abs(skew) > 5:
            print(f"brisk: this sandbox's clock is {skew:+.0f} s off after the restore", file=sys.stderr)
        for hook in on_restore:
            hook()

    # Calls

    def call(self, ident: str, payload: bytearray) -> None:
        began = time.perf_counter()
        try:
            result = self.run(payload)
        except Failure as failure:
            header: dict[str, Any] = {"type": "exception", "id": ident, "error": failure.error}
            result = failure.payload
        else:
            header = {"type": "result", "id": ident}
        if os.getpid() != self.pid:
            flush()
            os._exit(0)  # the user's code forked, and this is the child that came back: it has no caller
        flush()
        header["ms"] = milliseconds(began)
        self.connection.send(header, result)

    def run(self, payload: bytearray) -> bytes:
        """The pickled result of one call, or Failure."""
        try:
            args, kwargs = pickle.loads(payload)
        except BaseException as exc:
            raise Failure("unpickle", exc) from None
        payload.clear()  # the arguments may be large, and live on in args
        try:
            function = self.function
            if function is None:
                raise Malformed("a call before a function was loaded")
            result = function(*args, **kwargs)
            if isinstance(result, types.CoroutineType):
                import asyncio

                result = asyncio.run(result)
        except BaseException as exc:
            raise Failure("raised", exc, payload=self.pickle_exception(exc)) from None
        del args, kwargs
        try:
            data = self.pickle(result)
        except BaseException as exc:
            what = f"the result, a {type(result).__qualname__}, cannot be pickled: {type(exc).__name__}: {exc}"
            raise Failure("pickle", exc, what) from None
        if len(data) > MAX_PAYLOAD:
            what = f"the result has {len(data)} bytes when pickled; at most {MAX_PAYLOAD} can be returned"
            raise Failure("pickle", ValueError(what))
        return data

    def pickle(self, value: object) -> bytes:
        if not self.by_value:
            try:
                return pickle.dumps(value, protocol=5)
            except Exception:
                pass  # what the standard pickler does not do (a lambda, a local class), the other one may
        from brisk._serialize import dumps

        return dumps(value)

    def pickle_exception(self, exc: BaseException) -> bytes:
        try:
            data = self.pickle(exc)
        except BaseException:
            return b""
        return data if len(data) <= MAX_EXCEPTION else b""


def import_function(module: str, qualname: str) -> Callable[..., Any]:
    """The plain function below the decorators of Brisk, out of the user's code."""
    # __import__ and not importlib.import_module: only the former takes its own frames out of tracebacks.
    try:
        __import__(module)
    except BaseException as exc:
        raise Failure("import", exc) from None
    found: Any = sys.modules[module]
    # The script that the user ran as __main__ on the host is this module here: pickles and multiprocessing look there.
    sys.modules["__main__"] = found
    try:
        for name in qualname.split("."):
            found = getattr(found, name)
        return plain(found)
    except Exception as exc:
        raise Failure("not_found", exc, f"module {module} has no function {qualname}") from None


def plain(found: Any) -> Callable[..., Any]:
    """What a brisk.Function wraps, or the thing itself if it is callable."""
    function = getattr(found, "__brisk_raw__", found)
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    return function  # type: ignore[no-any-return]


def milliseconds(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 3)


def set_path(code: str) -> None:
    """The user's code first, then the SDK, then the working directory, then Python's own.

    Python has put a directory of its own choice first: this file's, or, started with -m, the working directory, whose
    json.py should be the user's and not the runner's.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    first = [code, os.path.dirname(here), os.getcwd()]
    sys.path[:] = first + [path for path in sys.path if path not in ("", here, *first)]


def main() -> NoReturn:
    # Take descriptors 0 to 2, should the sandbox have come without them: the connection must not be one of these.
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            break
        os.set_inheritable(fd, True)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            # Lines as they come, though it is a pipe; printing never fails for want of a character.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    code = os.environ.get("BRISK_RUNNER_CODE", CODE)
    set_path(code)
    sys.argv = [code]
    runner = Runner(os.environ.get("BRISK_RUNNER_SOCKET", SOCKET))
    try:
        status = runner.serve()
    except (OSError, Malformed) as exc:
        print(f"brisk: the connection to the node broke: {exc}", file=sys.stderr)
        status = 70
    flush()
    os._exit(status)  # not sys.exit: threads that the user's code left running would keep the sandbox alive


if __name__ == "__main__":
    main()
