"""What a user sees while Brisk works: the output of functions, and how builds go."""

from __future__ import annotations

import codecs
import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Optional, TextIO

from brisk._client import BuildObserver


class Relay:
    """Writes what functions print to this process's own streams. Safe for use by many threads."""

    def __init__(self, stdout: Optional[TextIO] = None) -> None:
        """Args: stdout: where functions' standard output goes; default sys.stdout as it is at the time."""
        self._stdout = stdout
        self._lock = threading.Lock()
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def write(self, stream: str, data: bytearray) -> None:
        """Write a piece of a function's output as it comes.

        Args:
            stream: "stdout" or "stderr".
            data: the bytes.
        """
        out = sys.stderr if stream == "stderr" else self._stdout or sys.stdout
        if out is None:
            return
        with self._lock:
            raw = getattr(out, "buffer", None)
            if raw is not None:
                out.flush()  # what was printed here before comes before
                raw.write(data)
                raw.flush()
                return
            # A stream without bytes below: a notebook's, or one that somebody put there.
            decoder = self._decoders.get(stream)
            if decoder is None:
                decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
            out.write(decoder.decode(data))
            out.flush()


class BuildProgress(BuildObserver):
    """Says on standard error which step of an image is being built; steps that were built before say nothing.

    On a terminal it is one line that changes and goes when the build has ended; elsewhere it is a line per step. The
    output of steps is shown only when one fails, by whoever catches the BuildError.
    """

    def __init__(self, out: Optional[TextIO] = None) -> None:
        self._out = out or sys.stderr
        self._tty = self._out.isatty()
        self._line = ""
        self._began = time.monotonic()

    def step(self, index: int, total: int, text: str, cached: bool) -> None:
        if cached:
            return
        self._line = f"brisk: building the image: {index}/{total} {text}"
        self._show()

    def progress(self, text: str) -> None:
        if self._tty and self._line:
            self._show(text)

    def log(self, data: bytes) -> None:
        if self._tty and self._line:
            lines = data.decode("utf-8", "replace").strip().splitlines()
            if lines:
                self._show(lines[-1].strip())

    def close(self) -> None:
        """Take the changing line away."""
        if self._tty and self._line:
            self._write("\r\x1b[K")

    def _show(self, detail: str = "") -> None:
        if not self._tty:
            self._write(self._line + "\n")
            return
        import shutil

        seconds = time.monotonic() - self._began
        line = f"{self._line} ({seconds:.0f} s) {detail}"
        width = shutil.get_terminal_size().columns - 1
        self._write("\r\x1b[K" + "".join(c for c in line if c.isprintable())[:width])

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it: the build goes on
            self._out.write(text)
            self._out.flush()


_always = False


def show_builds() -> None:
    """Show builds on standard error even if it is no terminal: the command line does."""
    global _always
    _always = True


@contextlib.contextmanager
def build_observer() -> Iterator[BuildObserver]:
    """An observer for one build, that shows it if somebody may be looking."""
    err: Any = sys.stderr
    if err is None or not (_always or err.isatty()):
        yield BuildObserver()
        return
    progress = BuildProgress(err)
    try:
        yield progress
    finally:
        progress.close()
