"""`brisk run FILE[::NAME] [--json] [-- OPTIONS]`.

The file is imported as a module; then its local entry point runs here, or one of its functions in a container. The
result of a function is printed on standard output; progress and complaints go to standard error. Exit codes:

    0 done   1 the user's code raised   2 usage   3 not found   4 timed out or cancelled   5 the build failed
    6 the machine lacks something   7 the server cannot be reached   70 a fault of Brisk's   130 interrupted
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any, Optional, TextIO, Union

from brisk import _options, exception
from brisk._app import App, LocalEntrypoint
from brisk._client import default_client
from brisk._code import check_stem
from brisk._function import Function
from brisk._output import Relay, show_builds
from brisk._remote import use_relay

USAGE = "usage: brisk run FILE[::NAME] [--json] [-- OPTIONS]"
_LOG_LINES = 30  # of a failed step's output
_HERE = os.path.dirname(os.path.abspath(__file__))

Target = Union[LocalEntrypoint, Function[Any, Any]]


class Stop(Exception):
    """The command ends.

    Attributes:
        code: its exit code.
        text: what people are told, whole.
        report: the same for programs: class, message, and where there is one hint and traceback.
    """

    def __init__(self, code: int, text: str = "", kind: str = "", message: str = "", **more: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.report = {"class": kind, "message": message or text, **{k: v for k, v in more.items() if v}}


def main(arguments: Sequence[str]) -> int:
    """Run the command; gives its exit code."""
    as_json = False
    signal.signal(signal.SIGINT, _interrupt)
    try:
        path, name, as_json, options = _arguments(arguments)
        show_builds()
        # With --json, standard output is the result and nothing else.
        use_relay(Relay(sys.stderr if as_json else None))
        module = load(path)
        target = choose(module, name, path)
        _run(target, options, f"brisk run {path}::{target.name}", as_json)
        sys.stdout.flush()
        return 0
    except Stop as stop:
        return _complain(stop, as_json)
    except SystemExit as exc:  # argparse, or the entry point's own sys.exit
        if exc.code is None or isinstance(exc.code, int):
            return exc.code or 0
        return _complain(Stop(1, str(exc.code), "SystemExit"), as_json)
    except KeyboardInterrupt:
        return _complain(Stop(130, "interrupted", "interrupted"), as_json)
    except BrokenPipeError:
        # Whoever read our output has gone, and wants no more of it; nor must Python's own exit try to flush it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _interrupt(*_: object) -> None:
    # Threads of the user's that wait for calls would keep the process until the calls end.
    default_client().abort()
    raise KeyboardInterrupt


def _arguments(arguments: Sequence[str]) -> tuple[str, Optional[str], bool, list[str]]:
    words = list(arguments)
    if words[:1] != ["run"]:
        raise Stop(2, USAGE, "usage")
    before, after = words[1:], []
    if "--" in before:
        at = before.index("--")
        before, after = before[:at], before[at + 1 :]
    as_json = "--json" in before
    rest = [word for word in before if word != "--json"]
    if not rest or rest[0].startswith("-"):
        raise Stop(0 if rest and rest[0] in ("-h", "--help") else 2, USAGE, "usage")
    path, _, name = rest[0].partition("::")
    return path, name or None, as_json, rest[1:] + after


def load(path: str) -> types.ModuleType:
    """Import the user's file as a module named by its stem, its directory first on sys.path.

    Raises:
        Stop: the file is missing, or importing it failed: with one message that names the place.
    """
    if not os.path.isfile(path):
        raise Stop(3, f"brisk: there is no file {path}", "not_found")
    try:
        stem = check_stem(path)
    except exception.Error as exc:
        raise Stop(2, f"brisk: {exc}", "invalid") from None
    full = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(full))
    sys.argv = [full]
    loader = importlib.machinery.SourceFileLoader(stem, full)
    spec = importlib.util.spec_from_file_location(stem, full, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    try:
        loader.exec_module(module)
    except exception.Error as exc:
        text = _local_traceback(exc) + f"brisk: {exc}"
        raise Stop(exception.exit_code(exc), text, _kind(exc), exc.message, hint=exc.hint) from None
    except Exception as exc:
        last = "".join(traceback.format_exception_only(type(exc), exc)).rstrip("\n")
        raise Stop(1, _local_traceback(exc) + last, _kind(exc), last) from None
    return module


def choose(module: types.ModuleType, name: Optional[str], path: str) -> Target:
    """Find what to run.

    Raises:
        Stop: there is no such thing, or more than one.
    """
    apps = {id(app): app for app in vars(module).values() if isinstance(app, App)}
    entrypoints: dict[str, LocalEntrypoint] = {}
    functions: dict[str, Function[Any, Any]] = {}
    for value in vars(module).values():  # those whose app has another name here, or none
        if isinstance(value, LocalEntrypoint):
            entrypoints[value.name] = value
        elif isinstance(value, Function):
            apps.setdefault(id(value.app), value.app)
    for app in apps.values():
        entrypoints.update(app.entrypoints)
        functions.update(app.functions)
    names = sorted([*entrypoints, *functions])
    if name is not None:
        found = entrypoints.get(name) or functions.get(name)
        if found is None:
            there = f"It has: {', '.join(names)}." if names else "It has no Brisk functions at all."
            raise Stop(3, f"brisk: {path} has no function or local entry point named {name}\n{there}", "not_found")
        return found
    candidates: dict[str, Any] = dict(entrypoints or functions)
    if len(candidates) == 1:
        only: Target = next(iter(candidates.values()))
        return only
    if not candidates:
        raise Stop(
            3,
            f"brisk: {path} has nothing to run\n"
            "Decorate a function with @app.function() or @app.local_entrypoint(), app being a brisk.App.",
            "not_found",
        )
    raise Stop(2, "brisk: say which: " + ", ".join(f"{path}::{c}" for c in sorted(candidates)), "usage")


def _run(target: Target, options: Sequence[str], program: str, as_json: bool) -> None:
    try:
        raw = target._raw if isinstance(target, LocalEntrypoint) else target.__brisk_raw__
        values = _options.parse(raw, options, program)
        if isinstance(target, Function):
            _show(target.remote(**values), as_json)
            return
        result = target(**values)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        if as_json:
            _show(result, as_json)
    except BrokenPipeError:
        raise
    except Exception as exc:
        raise _uncaught(exc, isinstance(target, LocalEntrypoint)) from None


def _show(result: object, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, default=_plain))
    elif result is not None:
        print(repr(result))


def _plain(value: Any) -> Any:
    """For JSON: arrays and scalars of numeric libraries as lists and numbers, sets as lists, all else by repr."""
    for method in ("tolist", "item"):
        if callable(getattr(value, method, None)):
            return getattr(value, method)()
    return sorted(value, key=repr) if isinstance(value, (set, frozenset)) else repr(value)


def _uncaught(exc: Exception, in_entrypoint: bool) -> Stop:
    """What to say about an exception of the user's code or of a call: the container's frames first."""
    cause = exc.__cause__
    remote = cause.text.rstrip("\n") if isinstance(cause, exception.RemoteTraceback) else ""
    local = _local_traceback(exc).rstrip("\n") if in_entrypoint else ""
    if isinstance(exc, exception.SerializationError) and not remote.startswith("Traceback"):
        remote = ""  # no frames, and the message quotes the rest
    parts = [remote]
    if isinstance(exc, exception.Error):
        if isinstance(exc, exception.BuildError):
            parts.append(_failed_step(exc))
        elif isinstance(exc, exception.InvalidError) and not remote:
            parts.append(local)
        # The last line of a remote traceback says the same as a RemoteError's message.
        said = isinstance(exc, exception.RemoteError) and remote.endswith(exc.message)
        if exc.hint or not said:
            parts.append(f"brisk: {exc.hint if said else _without_output(exc)}")
        message, hint = exc.message, exc.hint
    else:
        last = "".join(traceback.format_exception_only(type(exc), exc)).rstrip("\n")
        message, hint = str(exc), ""
        if not remote:
            parts += [local, last]
        elif local:
            parts.append("It was called here:\n" + local.split("\n", 1)[1])
    text = "\n".join(filter(None, parts))
    return Stop(exception.exit_code(exc), text, _kind(exc), message, hint=hint, traceback=remote or local)


def _failed_step(exc: exception.BuildError) -> str:
    if not exc.step:
        return ""
    lines = exc.log.replace("\r", "\n").splitlines()
    left_out = [f"... {len(lines) - _LOG_LINES} lines before ..."] if len(lines) > _LOG_LINES else []
    shown = [f"  | {line}" for line in left_out + lines[-_LOG_LINES:]]
    return "\n".join([f"brisk: this step of the image failed: {exc.step}", *shown])


def _without_output(exc: exception.Error) -> str:
    """The error as text. That of a step repeats the end of the output, for those who have not just seen it."""
    if not isinstance(exc, exception.BuildError) or not exc.log:
        return str(exc)
    message = exc.message.split("; the end of its output:\n", 1)[0]
    return f"{message}\n{exc.hint}" if exc.hint else message


def _local_traceback(exc: BaseException) -> str:
    """The frames of the user's code, with a heading; "" if there are none."""
    frames = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith((_HERE, "<frozen importlib")) and not frame.filename.startswith(_ASYNCIO)
    ]
    if not frames:
        return ""
    return "Traceback (most recent call last):\n" + "".join(traceback.format_list(frames))


_ASYNCIO = os.path.dirname(asyncio.__file__)


def _kind(exc: BaseException) -> str:
    """The API's name of an exception's class; for one that is not Brisk's, its own."""
    if isinstance(exc, exception.Error):
        return exc.api_class or next((name for name, kind in exception.BY_CLASS.items() if isinstance(exc, kind)), "")
    return type(exc).__name__


def _complain(stop: Stop, as_json: bool) -> int:
    out: TextIO = sys.stdout if stop.code == 0 else sys.stderr
    text = stop.text
    if as_json and stop.code:
        text = json.dumps({"error": stop.report, "exit": stop.code})
    if text:
        print(text, file=out, flush=True)
    return stop.code
