"""The runner as a process, driven over a real socket by a peer that plays the node."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brisk import _serialize
from tests.conftest import StartRunner
from tests.nodepeer import SDK


def test_calls_a_function(start_runner: StartRunner) -> None:
    peer = start_runner("def f(a, b=2):\n    return {'sum': a + b}\n", "f")
    assert peer.result(1) == {"sum": 3}
    assert peer.result(1, b=40) == {"sum": 41}
    assert peer.exit() == 0


def test_started_with_m(start_runner: StartRunner) -> None:
    peer = start_runner("import brisk\ndef f():\n    return brisk.is_local()\n", "f", start=["-m", "brisk._runner"])
    assert peer.result() is False


def test_calls_what_a_brisk_function_wraps(start_runner: StartRunner) -> None:
    source = """
        import brisk
        app = brisk.App("a")
        @app.function(image=brisk.Image.debian_slim().pip_install("x"))
        def f():
            return brisk.is_local(), f.local.__name__
    """
    peer = start_runner("\n".join(line[8:] for line in source.splitlines()), "f")
    assert peer.result() == (False, "local")


def test_imports_little(start_runner: StartRunner) -> None:
    """What a cold start pays for before it imports the user's module."""
    peer = start_runner("import sys\nbefore = sorted(sys.modules)\ndef f():\n    return before\n", "f")
    loaded = set(peer.result())
    assert not loaded & {"typing", "asyncio", "http", "http.client", "traceback", "inspect", "dataclasses", "tarfile"}
    assert not {m for m in loaded if m.startswith("brisk")}


def test_importing_brisk_inside_costs_little(start_runner: StartRunner) -> None:
    source = (
        "import sys\nimport brisk\napp = brisk.App('a')\n@app.function()\ndef f():\n    return sorted(sys.modules)\n"
    )
    loaded = set(start_runner(source, "f").result())
    assert not loaded & {"typing", "asyncio", "http", "inspect", "dataclasses", "tarfile", "brisk._client"}


def test_methods_of_namespaces(start_runner: StartRunner) -> None:
    peer = start_runner("class A:\n    @staticmethod\n    def f():\n        return 'static'\n", "A.f")
    assert peer.result() == "static"


def test_async_function(start_runner: StartRunner) -> None:
    source = (
        "import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    if n < 0: raise ValueError(n)\n    return n\n"
    )
    peer = start_runner(source, "f")
    assert peer.result(5) == 5
    error = peer.error(-1)
    assert error["traceback"].startswith("Traceback (most recent call last):\n")
    assert error["traceback"].count("  File ") == 1


def test_large_arguments_and_results(start_runner: StartRunner) -> None:
    peer = start_runner("def f(data, n):\n    return len(data), bytes(n)\n", "f")
    size, data = peer.result(b"x" * (8 << 20), 50 << 20)
    assert size == 8 << 20
    assert len(data) == 50 << 20


def test_user_exception(start_runner: StartRunner) -> None:
    source = "def deep():\n    raise KeyError('nothing')\ndef f():\n    deep()\n"
    peer = start_runner(source, "f")
    header, data = peer.call()
    error = header["error"]
    assert {k: error[k] for k in ("type", "module", "message", "kind")} == {
        "type": "KeyError",
        "module": "builtins",
        "message": "'nothing'",
        "kind": "raised",
    }
    lines = error["traceback"].splitlines()
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{Path(peer.path).parent / "code" / "m.py"}", line 4, in f',
        f'  File "{Path(peer.path).parent / "code" / "m.py"}", line 2, in deep',
    ]
    assert lines[-1] == "KeyError: 'nothing'"
    exc = pickle.loads(data)
    assert type(exc) is KeyError
    assert exc.args == ("nothing",)
    assert peer.call()[0]["type"] == "exception", "the runner goes on"


def test_wrong_arguments(start_runner: StartRunner) -> None:
    peer = start_runner("def f(a):\n    return a\n", "f")
    error = peer.error()
    assert error["type"] == "TypeError"
    assert error["kind"] == "raised"
    assert error["traceback"] == "TypeError: f() missing 1 required positional argument: 'a'\n"


@pytest.mark.parametrize(
    ("statement", "name"),
    [("import sys; sys.exit(3)", "SystemExit"), ("raise KeyboardInterrupt", "KeyboardInterrupt")],
)
def test_exits_are_exceptions(start_runner: StartRunner, statement: str, name: str) -> None:
    peer = start_runner(f"def f():\n    {statement}\n", "f")
    error = peer.error()
    assert (error["type"], error["kind"]) == (name, "raised")
    assert peer.error()["type"] == name


def test_hard_exit_ends_the_process(start_runner: StartRunner) -> None:
    peer = start_runner("import os\ndef f():\n    print('last words')\n    os._exit(9)\n", "f")
    with pytest.raises(EOFError):
        peer.call()
    assert peer.wait() == 9
    assert bytes(peer.output["stdout"]) == b"last words\n", "lines are written as they come"


def test_exception_that_cannot_be_pickled(start_runner: StartRunner) -> None:
    source = "import threading\ndef f():\n    e = ValueError('x')\n    e.lock = threading.Lock()\n    raise e\n"
    header, data = start_runner(source, "f").call()
    assert header["error"]["type"] == "ValueError"
    assert data == b""


def test_exception_with_broken_str(start_runner: StartRunner) -> None:
    source = "class E(Exception):\n    def __str__(self):\n        raise SystemExit\ndef f():\n    raise E\n"
    error = start_runner(source, "f").error()
    assert error["type"] == "E"
    assert error["message"] == "<its str() failed>"
    assert error["traceback"]


def test_huge_exceptions_are_bounded(start_runner: StartRunner) -> None:
    source = "def f(c):\n    raise ValueError(c * 20_000_000)\n"
    peer = start_runner(source, "f")
    for character in ("x", "\x01", "\U0001f600", "\\"):
        header, data = peer.call(character)
        assert len(header["error"]["message"]) < 21_000
        assert len(header["error"]["traceback"]) < 101_000
        assert data == b""


def test_recursion(start_runner: StartRunner) -> None:
    peer = start_runner("def f(n=0):\n    return f(n + 1)\n", "f")
    error = peer.error()
    assert error["type"] == "RecursionError"
    assert len(error["traceback"]) < 10_000
    assert peer.error()["type"] == "RecursionError"


def test_arguments_that_cannot_be_read(start_runner: StartRunner) -> None:
    peer = start_runner("def f(a):\n    return a\n", "f")
    header, _ = peer.call_raw(b"\x80\x05cno_such_module\nThing\n.")
    assert header["error"]["kind"] == "unpickle"
    assert header["error"]["type"] == "ModuleNotFoundError"
    header, _ = peer.call_raw(b"junk")
    assert header["error"]["kind"] == "unpickle"
    assert peer.result(1) == 1


def test_result_that_cannot_be_pickled(start_runner: StartRunner) -> None:
    peer = start_runner("import threading\ndef f():\n    return threading.Lock()\n", "f")
    error = peer.error()
    assert error["kind"] == "pickle"
    assert error["message"].startswith("the result, a lock, cannot be pickled: TypeError:")


def test_generator_result(start_runner: StartRunner) -> None:
    error = start_runner("def f():\n    yield 1\n", "f").error()
    assert error["kind"] == "pickle"
    assert "generator" in error["message"]


def test_lambda_result_goes_by_value(start_runner: StartRunner) -> None:
    assert start_runner("def f():\n    return lambda: 42\n", "f").result()() == 42


@pytest.mark.parametrize(
    ("source", "function", "kind", "name"),
    [
        ("import no_such_package\n", "f", "import", "ModuleNotFoundError"),
        ("def f(:\n", "f", "import", "SyntaxError"),
        ("1 / 0\n", "f", "import", "ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", "f", "import", "SystemExit"),
        ("x = 1\n", "f", "not_found", "AttributeError"),
        ("f = 3\n", "f", "not_found", "TypeError"),
    ],
)
def test_load_failures(start_runner: StartRunner, source: str, function: str, kind: str, name: str) -> None:
    peer = start_runner(source)
    answer = peer.load("m", function)
    assert answer["type"] == "load_failed"
    assert (answer["error"]["kind"], answer["error"]["type"]) == (kind, name)
    assert "_runner.py" not in answer["error"]["traceback"]
    assert "importlib" not in answer["error"]["traceback"]
    assert peer.wait() == 1


def test_serialized_function(start_runner: StartRunner) -> None:
    base = 10

    def add(n: int) -> int:
        return base + n

    peer = start_runner()
    assert peer.load("", "add", pickled=_serialize.dumps(add))["type"] == "loaded"
    assert peer.result(5) == 15


def test_serialized_by_another_python(start_runner: StartRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_serialize.sys, "version_info", (3, 2, 0))  # type: ignore[attr-defined]
        data = _serialize.dumps(lambda: 1)
    peer = start_runner()
    answer = peer.load("", "f", pickled=data)
    assert answer["error"]["kind"] == "unpickle"
    assert answer["error"]["message"].startswith("pickled by value under Python 3.2, and this is Python ")
    assert peer.wait() == 1


def test_serialized_function_that_needs_a_module(start_runner: StartRunner) -> None:
    peer = start_runner()
    answer = peer.load("", "f", pickled=b"\x80\x05cno_such_module\nThing\n.")
    assert (answer["error"]["kind"], answer["error"]["type"]) == ("import", "ModuleNotFoundError")


def test_environment_and_identity(start_runner: StartRunner) -> None:
    source = """
import os
os.environ["MINE"] = "set at import"
os.environ["THEIRS"] = "changed at import"
seen = os.environ["EARLY"]
def f(*names):
    return seen, [os.environ.get(n) for n in names]
"""
    peer = start_runner(source, env={"FROM_IMAGE": "image"})
    peer.load("m", "f", env={"EARLY": "1", "THEIRS": "host", "GONE": "x"})
    names = ("EARLY", "MINE", "THEIRS", "GONE", "FROM_IMAGE", "BRISK_INSTANCE", "BRISK_APP")
    assert peer.result(*names) == (
        "1",
        ["1", "set at import", "changed at import", "x", "image", "i-1", "tests"],
    )
    park(peer)
    peer.send(
        {
            "type": "resume",
            "env": {"EARLY": "2", "THEIRS": "host", "NEW": "n"},
            "identity": {"instance": "i-2"},
            "seed": "00" * 32,
            "time_ns": time.time_ns(),
        }
    )
    assert peer.result(*names, "NEW") == (
        "1",
        ["2", "set at import", "changed at import", None, "image", "i-2", None, "n"],
    )


def park(peer: object) -> None:
    from tests.nodepeer import Peer

    assert isinstance(peer, Peer)
    peer.unlisten()
    peer.send({"type": "park"})
    with pytest.raises(EOFError):
        peer.receive()
    assert peer.connection is not None
    peer.connection.close()
    peer.listen()
    hello = peer.accept()
    assert (hello["phase"], hello["generation"]) == ("restored", "2")


def test_restored_clones_differ(start_runner: StartRunner) -> None:
    source = "import random, ssl\nrandom.seed(1)\ndef f():\n    return random.random()\n"
    values = []
    for seed in ("11" * 32, "22" * 32, "11" * 32):
        peer = start_runner(source, "f")
        park(peer)
        peer.send({"type": "resume", "env": {}, "identity": {}, "seed": seed, "time_ns": time.time_ns()})
        values.append(peer.result())
        peer.close()
    assert values[0] == values[2]
    assert values[0] != values[1]


def test_reseeds_numpy_and_torch_if_they_are_there(start_runner: StartRunner) -> None:
    source = """
import sys, types
seeds = []
sys.modules["numpy.random"] = types.SimpleNamespace(seed=seeds.append)
sys.modules["torch"] = types.SimpleNamespace(manual_seed=seeds.append)
def f():
    return seeds
"""
    peer = start_runner(source, "f")
    park(peer)
    seed = "01000000" * 8
    peer.send({"type": "resume", "env": {}, "identity": {}, "seed": seed, "time_ns": time.time_ns()})
    assert peer.result() == [[1] * 8, 0x0000000100000001 >> 1]


def test_says_when_the_clock_is_off(start_runner: StartRunner) -> None:
    peer = start_runner("def f():\n    pass\n", "f")
    park(peer)
    past = time.time_ns() - 100 * 10**9
    peer.send({"type": "resume", "env": {}, "identity": {}, "seed": "00" * 32, "time_ns": past})
    peer.result()
    assert peer.exit() == 0
    assert b"clock is +100 s off" in bytes(peer.output["stderr"])


def test_output_comes_before_the_result(start_runner: StartRunner) -> None:
    source = "import sys\ndef f():\n    print('out', end='')\n    print('err', end='', file=sys.stderr)\n"
    peer = start_runner(source, "f")
    peer.result()
    peer.process.send_signal(signal.SIGKILL)
    peer.wait()
    assert (bytes(peer.output["stdout"]), bytes(peer.output["stderr"])) == (b"out", b"err")


def test_prints_any_character(start_runner: StartRunner) -> None:
    peer = start_runner(
        "def f():\n    print('caf\\xe9 \\udc80')\n", "f", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    )
    peer.result()
    peer.exit()
    assert bytes(peer.output["stdout"]) == "café \\udc80\n".encode()


def test_replaced_and_closed_streams(start_runner: StartRunner) -> None:
    source = "import sys\ndef f(x):\n    if x: sys.stdout.close()\n    else: sys.stdout = None\n    return x\n"
    assert start_runner(source, "f").result(0) == 0
    assert start_runner(source, "f").result(1) == 1


def test_children_do_not_hold_the_connection(start_runner: StartRunner) -> None:
    source = """
import os, subprocess, sys
def f():
    fds = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout.split()
    pid = os.fork()
    if pid == 0:
        n = sum("socket" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.islink(f"/proc/self/fd/{fd}"))
        os._exit(n)
    return len(fds), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    peer = start_runner(source, "f")
    inherited, sockets = peer.result()
    assert inherited == 4, "0, 1, 2 and ls's own"
    assert sockets == 0


def test_a_forked_child_that_returns_answers_nothing(start_runner: StartRunner) -> None:
    peer = start_runner(
        "import os\ndef f():\n    pid = os.fork()\n    if pid: os.waitpid(pid, 0)\n    return pid\n", "f"
    )
    assert peer.result() > 0
    assert peer.result() > 0


def test_multiprocessing_and_threads(start_runner: StartRunner) -> None:
    source = """
import concurrent.futures, multiprocessing
def square(n):
    return n * n
def f(method):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        a = list(pool.map(square, range(3)))
    with multiprocessing.get_context(method).Pool(2) as pool:
        return a, pool.map(square, range(4))
"""
    peer = start_runner(source, "f")
    assert peer.result("fork") == ([0, 1, 4], [0, 1, 4, 9])
    assert peer.result("spawn") == ([0, 1, 4], [0, 1, 4, 9])


def test_writing_to_standard_descriptors_breaks_nothing(start_runner: StartRunner) -> None:
    source = """
import contextlib, os
def f():
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.write(fd, b"BR junk")
    return "ok"
"""
    assert start_runner(source, "f").result() == "ok"


def test_starts_without_standard_descriptors(tmp_path: Path, start_runner: StartRunner) -> None:
    source = "import os\ndef f():\n    return sorted(os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2))\n"
    peer = start_runner(source)
    peer.close()
    peer.listen()
    env = {**os.environ, "PYTHONPATH": str(SDK), "BRISK_RUNNER_SOCKET": peer.path}
    env["BRISK_RUNNER_CODE"] = str(tmp_path / "code")
    shell = f"exec {sys.executable} -m brisk._runner <&- >&- 2>&-"
    process = subprocess.Popen(["/bin/sh", "-c", shell], env=env)
    peer.accept()
    assert peer.load("m", "f")["type"] == "loaded"
    assert peer.result() == ["/dev/null"] * 3
    peer.send({"type": "exit"})
    assert process.wait(60) == 0


def test_ends_when_the_node_goes(start_runner: StartRunner) -> None:
    peer = start_runner("def f():\n    pass\n", "f")
    assert peer.connection is not None
    peer.connection.close()
    assert peer.wait() == 0


def test_ends_on_garbage(start_runner: StartRunner) -> None:
    peer = start_runner()
    assert peer.connection is not None
    peer.connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.wait() == 70
    assert b"not a frame of version 1" in bytes(peer.output["stderr"])


def test_background_threads_do_not_keep_it_alive(start_runner: StartRunner) -> None:
    source = "import threading\ndef f():\n    threading.Thread(target=threading.Event().wait).start()\n"
    peer = start_runner(source, "f")
    peer.result()
    assert peer.exit() == 0


def test_working_directory_and_code_path(start_runner: StartRunner, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name in ("m", "socket", "brisk", "_app", "json"):
        (work / f"{name}.py").write_text("raise Exception('not this one')\n")
    (work / "beside.py").write_text("")
    source = """
import os, sys, brisk, beside
def f():
    return os.getcwd(), sys.path[:3], sys.modules["__main__"].__name__
"""
    peer = start_runner(source, "f", cwd=work)
    assert peer.result() == (str(work), [str(tmp_path / "code"), str(SDK), str(work)], "m")
