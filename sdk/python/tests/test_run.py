"""`brisk run` from the command line to a function in the real runner, with a fake server in between."""

from __future__ import annotations

import io
import json
import re
import signal
import tarfile

import pytest

from tests.command import Project
from tests.fakeserver import FakeServer, Reply, frame
from tests.nodepeer import SDK

HEAD = """\
import brisk
app = brisk.App("a")
"""


def code_of(server: FakeServer) -> dict[str, bytes]:
    (definition,) = server.functions.values()
    with tarfile.open(fileobj=io.BytesIO(server.blobs[definition["code"]])) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]


def test_local_entrypoint(project: Project, server: FakeServer) -> None:
    project.write(
        "stats.py",
        HEAD
        + """
image = brisk.Image.debian_slim().pip_install("numpy").env({"A": "1"})
@app.function(image=image, cpu=0.5, memory=512, env={"WHO": "me"})
def mean(values):
    import os
    return sum(values) / len(values), os.environ["WHO"], brisk.is_local()
@app.local_entrypoint()
def main(n: int = 4):
    print(mean.remote(range(n)), mean.remote([1]), mean.local([1, 3])[0] if n == 0 else "-", brisk.is_local())
""",
    )
    ended = project.run("stats.py", "--", "--n", "5")
    assert ended.err == (
        "brisk: building the image: 1/3 debian_slim\n"
        "brisk: building the image: 2/3 pip_install\n"
        "brisk: building the image: 3/3 env\n"
    )
    assert (ended.code, ended.out) == (0, "(2.0, 'me', False) (1.0, 'me', False) - True\n")
    (image,) = server.images.values()
    assert image == {
        "base": {"kind": "debian_slim", "suite": "bookworm", "python_version": None},
        "steps": [
            {"kind": "pip_install", "packages": ["numpy"], "options": []},
            {"kind": "env", "vars": {"A": "1"}},
        ],
    }
    (function,) = server.functions.values()
    assert {key: function[key] for key in ("app", "name", "module", "qualname", "serialized")} == {
        "app": "a",
        "name": "mean",
        "module": "stats",
        "qualname": "mean",
        "serialized": False,
    }
    assert function["spec"] == {
        "cpu": 0.5,
        "memory": 512,
        "timeout": 300,
        "min_containers": 0,
        "buffer_containers": 0,
        "env": {"WHO": "me"},
        "block_network": False,
        "snapshot": True,
    }
    again = project.run("stats.py")
    assert (again.code, again.out, again.err) == (0, "(1.5, 'me', False) (1.0, 'me', False) - True\n", "")


def test_function_by_name_with_options(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
@app.function()
def power(base: int, exponent: float = 2):
    print("computing")
    return {"power": base ** exponent}
@app.function()
def other():
    pass
""",
    )
    ended = project.run("m.py::power", "--", "--base", "3")
    assert (ended.code, ended.out) == (0, "computing\n{'power': 9}\n")
    ended = project.run("m.py::power", "--json", "--base=3", "--exponent=0.5")
    assert ended.code == 0
    assert json.loads(ended.out) == {"power": pytest.approx(3**0.5)}
    assert "computing\n" in ended.err
    ended = project.run("m.py")
    assert (ended.code, ended.err) == (2, "brisk: say which: m.py::other, m.py::power\n")


def test_wrong_options(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function()\ndef f(n: int):\n    'Does it.'\n    return n\n")
    ended = project.run("m.py", "--", "--n", "x")
    assert ended.code == 2
    assert "usage: brisk run m.py::f [-h] --n INT\n" in ended.err
    assert "argument --n: invalid int value: 'x'" in ended.err
    ended = project.run("m.py", "--", "--m", "1")
    assert ended.code == 2
    assert "the following arguments are required: --n" in ended.err
    ended = project.run("m.py", "--", "--help")
    assert (ended.code, ended.err) == (0, "")
    assert "Does it." in ended.out
    assert project.run().code == 2
    assert project.run("--help").code == 0


def test_syntax_error(project: Project) -> None:
    project.write("m.py", "x = 1\ndef f(:\n    pass\n")
    ended = project.run("m.py")
    assert ended.code == 1
    assert ended.out == ""
    assert ended.err.startswith(f'  File "{project.directory}/m.py", line 2\n    def f(:\n')
    assert ended.err.splitlines()[-1].startswith("SyntaxError: ")


def test_import_error_in_the_users_file(project: Project) -> None:
    project.write("helper.py", "import no_such_package\n")
    project.write("m.py", "\nimport helper\n")
    ended = project.run("m.py")
    assert ended.code == 1
    assert re.findall(r'File "(.*)", line (\d+)', ended.err) == [
        (f"{project.directory}/m.py", "2"),
        (f"{project.directory}/helper.py", "1"),
    ]
    assert ended.err.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_package'"


def test_mistake_in_a_declaration(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function(memory='1GB')\ndef f(): pass\n")
    ended = project.run("m.py")
    assert ended.code == 2
    assert re.findall(r'File "(.*)", line (\d+)', ended.err) == [(f"{project.directory}/m.py", "3")]
    assert ended.err.splitlines()[-1] == "brisk: memory='1GB': want a whole number"


def test_things_that_are_not_there(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function()\ndef f(): pass\n")
    project.write("empty.py", "")
    ended = project.run("m.py::g")
    assert (ended.code, ended.err) == (
        3,
        "brisk: m.py has no function or local entry point named g\nIt has: f.\n",
    )
    assert project.run("none.py").code == 3
    assert project.run("empty.py").code == 3


@pytest.mark.parametrize("name", ["my-file.py", "json.py", "brisk.py"])
def test_files_that_cannot_be_modules(project: Project, name: str) -> None:
    project.write(name, HEAD)
    ended = project.run(str(project.directory / name))
    assert ended.code == 2, ended
    assert "Rename the file" in ended.err


def test_started_with_m(project: Project) -> None:
    project.write("m.py", HEAD + "@app.local_entrypoint()\ndef main():\n    print('ok')\n")
    assert project.python("-m", "brisk", "run", "m.py").out == "ok\n"


def test_no_server(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function()\ndef f(): pass\n")
    project.socket = "/nonexistent/api.sock"
    ended = project.run("m.py")
    assert ended.code == 7
    assert ended.err == (
        "brisk: no Brisk server answers on /nonexistent/api.sock: No such file or directory\n"
        "Start one with `brisk up`.\n"
    )


def test_uncaught_remote_exception(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
class Odd(Exception):
    pass
@app.function()
def f(n):
    raise Odd(n)
@app.local_entrypoint()
def main():
    f.remote(7)
""",
    )
    ended = project.run("m.py")
    assert ended.code == 1
    remote, local = ended.err[ended.err.index("Traceback") :].split("It was called here:\n")
    assert re.findall(r'File ".*/(\w+)/m.py", line (\d+), in (\w+)', remote) == [("code", "8", "f")]
    assert remote.endswith("m.Odd: 7\n")
    assert re.findall(r'File ".*/(\w+)/m.py", line (\d+), in (\w+)', local) == [("project", "11", "main")]
    assert "brisk/" not in local


def test_remote_exception_is_caught_as_itself(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
class Odd(Exception):
    def __init__(self, a, b=1):
        super().__init__(a, b)
        self.extra = a
@app.function()
def f(n):
    raise Odd(n)
@app.local_entrypoint()
def main():
    try:
        f.remote(7)
    except Odd as e:
        print(e.extra, type(e.__cause__).__name__, "in f" in str(e.__cause__))
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (0, "7 RemoteTraceback True\n"), ended.err


def test_exception_whose_class_is_unknown_here(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
@app.function()
def f():
    import sys, types
    sys.modules["only_there"] = there = types.ModuleType("only_there")
    exec("class Odd(Exception): pass", there.__dict__)
    raise there.Odd("seven")
@app.local_entrypoint()
def main():
    try:
        f.remote()
    except brisk.RemoteError as e:
        print(e.type_name, e.message, "in f" in e.traceback)
    f.remote()
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (1, "only_there.Odd only_there.Odd: seven True\n"), ended.err
    assert ended.err.endswith("only_there.Odd: seven\n")
    assert ended.err.count("seven") == 2, "the source line, and the exception once"


@pytest.mark.parametrize("statement", ["import sys; sys.exit(3)", "raise KeyboardInterrupt"])
def test_exit_of_the_function_is_not_ours(project: Project, statement: str) -> None:
    project.write("m.py", HEAD + f"@app.function()\ndef f():\n    {statement}\n")
    ended = project.run("m.py")
    assert ended.code == 1
    assert "in f" in ended.err


def test_process_that_ends(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function()\ndef f():\n    import os\n    os._exit(3)\n")
    ended = project.run("m.py")
    assert ended.code == 1
    assert "brisk: the function's process exited with 3\n" in ended.err


def test_import_missing_in_the_image(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
if not brisk.is_local():
    import no_such_package
@app.function()
def f():
    pass
""",
    )
    ended = project.run("m.py")
    assert ended.code == 1
    assert "in <module>" in ended.err
    assert "ModuleNotFoundError: No module named 'no_such_package'" in ended.err
    assert ".pip_install(...)" in ended.err


def test_function_that_is_not_there_inside(project: Project) -> None:
    project.write("m.py", HEAD + "if brisk.is_local():\n    @app.function()\n    def f():\n        pass\n")
    ended = project.run("m.py")
    assert ended.code == 3
    assert "brisk: module m has no function f\n" in ended.err


@pytest.mark.parametrize(
    ("arguments", "body", "what"),
    [
        ("threading.Lock()", "pass", "the arguments of f cannot be pickled: TypeError"),
        ("1", "return threading.Lock()", "the result, a lock, cannot be pickled: TypeError"),
        ("(i for i in 'x')", "pass", "the arguments of f cannot be pickled: TypeError"),
    ],
)
def test_what_cannot_be_pickled(project: Project, arguments: str, body: str, what: str) -> None:
    project.write(
        "m.py",
        HEAD
        + f"""
import threading
@app.function()
def f(x):
    {body}
@app.local_entrypoint()
def main():
    f.remote({arguments})
""",
    )
    ended = project.run("m.py")
    assert ended.code == 1
    assert f"brisk: {what}" in ended.err


def test_arguments_that_cannot_be_read_inside(project: Project) -> None:
    project.write("only_here.py", "class Thing: pass\n")
    project.write(
        "m.py",
        HEAD
        + """
@app.function()
def f(x):
    pass
@app.local_entrypoint()
def main():
    f.remote(1)
    import only_here
    f.remote(only_here.Thing())
""",
    )
    ended = project.run("m.py")
    assert ended.code == 1
    assert "brisk: f or its arguments cannot be read in the container: ModuleNotFoundError" in ended.err


def test_lambdas_travel_as_arguments(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
@app.function()
def f(g):
    return lambda n: g(n) + 1
@app.local_entrypoint()
def main():
    k = 100
    print(f.remote(lambda n: n * k)(3))
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (0, "301\n"), ended.err


def test_closures_lambdas_and_serialized(project: Project, server: FakeServer) -> None:
    project.write(
        "m.py",
        HEAD
        + """
def make(k):
    @app.function(name=f"times{k}")
    def times(n):
        return n * k
    return times
double, treble = make(2), make(3)
plus = app.function(name="plus")(lambda n: n + 1)
class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
@app.function(serialized=True)
def move(p):
    return Point(p.x + 1)
@app.local_entrypoint()
def main():
    print(double.remote(5), treble.remote(5), plus.remote(5), move.remote(Point(1)) == Point(2))
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (0, "10 15 6 True\n"), ended.err
    assert {f["serialized"] for f in server.functions.values()} == {True}


def test_plain_script(project: Project, server: FakeServer) -> None:
    """python script.py: the function's module is __main__ here, and script inside."""
    project.write(
        "script.py",
        HEAD
        + """
import dataclasses
@dataclasses.dataclass
class Point:
    x: int
@app.function()
def move(p):
    return Point(p.x + 1)
if __name__ == "__main__":
    print(move.remote(Point(1)) == Point(2))
""",
    )
    ended = project.python("script.py")
    assert (ended.code, ended.out, ended.err) == (0, "True\n", "")
    (function,) = server.functions.values()
    assert (function["module"], function["serialized"]) == ("script", False)


def test_interactive_session(project: Project, server: FakeServer) -> None:
    source = (
        HEAD
        + "class P:\n    x = 1\n@app.function()\ndef f(p):\n    return p.x + 1, P\n"
        + "r = f.remote(P())\nprint(r[0], r[1] is P)\n"
    )
    ended = project.python("-c", source)
    assert (ended.code, ended.out) == (0, "2 True\n"), ended.err
    (function,) = server.functions.values()
    assert function["serialized"] is True


def test_first_party_modules_travel(project: Project, server: FakeServer) -> None:
    project.write("pkg/__init__.py", "")
    project.write("pkg/sub/__init__.py", "from . import deep\n")
    project.write("pkg/sub/deep.py", "value = 'deep'\n")
    project.write("pkg/unused.py", "")
    project.write("spaces/inner.py", "value = 'namespace'\n")
    project.write("beside.py", "value = 'beside'\n")
    project.write(".venv/lib/python3/site-packages/installed.py", "")
    project.write("data.txt", "")
    project.write(
        "m.py",
        """
import sys, os
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".venv/lib/python3/site-packages"))
try:
    import installed
except ImportError:
    pass
"""
        + HEAD
        + """
import beside, pkg.sub, spaces.inner
@app.function()
def f():
    return beside.value, pkg.sub.deep.value, spaces.inner.value
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (0, "('beside', 'deep', 'namespace')\n"), ended.err
    assert sorted(code_of(server)) == [
        "beside.py",
        "m.py",
        "pkg/__init__.py",
        "pkg/sub/__init__.py",
        "pkg/sub/deep.py",
        "spaces/inner.py",
    ]


def test_add_local_python_source(project: Project, server: FakeServer) -> None:
    project.write("lib/tool/__init__.py", "")
    project.write("lib/tool/late.py", "value = 'late'\n")
    project.write("lib/single.py", "value = 'single'\n")
    project.write(
        "app/m.py",
        """
import sys
sys.path.append("lib")
"""
        + HEAD
        + """
image = brisk.Image.debian_slim().add_local_python_source("tool", "single")
@app.function(image=image)
def f():
    import tool.late, single
    return tool.late.value, single.value
""",
    )
    ended = project.run("app/m.py")
    assert (ended.code, ended.out) == (0, "('late', 'single')\n"), ended.err
    assert sorted(code_of(server)) == ["m.py", "single.py", "tool/__init__.py", "tool/late.py"]


def test_images_that_others_made(project: Project, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(project.directory))
    project.write("docker/Dockerfile", "FROM scratch\nCOPY a.txt /\n")
    project.write("src/a.txt", "A")
    project.write("src/skip.log", "")
    project.write("src/.dockerignore", "*.log\n")
    project.write(
        "m.py",
        HEAD
        + """
pulled = brisk.Image.from_registry("python:3.12-slim").env({"A": "b"})
built = brisk.Image.from_dockerfile("docker/Dockerfile", context_dir="src", build_args={"V": "1"})
@app.function(image=IMAGE)
def f():
    return 1
""",
    )
    source = (project.directory / "m.py").read_text()
    for name in ("pulled", "built"):
        project.write("m.py", source.replace("IMAGE", name))
        assert project.run("m.py").code == 0
    project.write("docker/config.json", '{"auths": {"https://index.docker.io/v1/": {"auth": "YWRhOmVuZ2luZQ=="}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(project.directory / "docker"))
    project.write("m.py", source.replace("IMAGE", "pulled"))
    assert project.run("m.py").code == 0
    named = 'brisk.Image.from_registry("a.example/b", username="me", password_env="TOKEN", insecure=True)'
    project.write("m.py", source.replace("IMAGE", named))
    ended = project.run("m.py")
    assert ended.code == 2
    assert "the environment variable TOKEN with the password is not set" in ended.err
    monkeypatch.setenv("TOKEN", "secret")
    assert project.run("m.py").code == 0
    pulled, built, found, given = (image["base"] for image in server.images.values())
    assert pulled == {"kind": "registry", "ref": "python:3.12-slim"}
    assert found == {**pulled, "auth": {"username": "ada", "password": "engine"}}
    login = {"username": "me", "password": "secret"}
    assert given == {"kind": "registry", "ref": "a.example/b", "insecure": True, "auth": login}
    with tarfile.open(fileobj=io.BytesIO(server.blobs[built.pop("context")])) as tar:
        assert tar.getnames() == ["a.txt"]
    assert built == {"kind": "dockerfile", "dockerfile": "FROM scratch\nCOPY a.txt /\n", "build_args": {"V": "1"}}
    project.write("m.py", HEAD + "@app.function(image=brisk.Image.from_dockerfile('gone'))\ndef f(): pass\n")
    ended = project.run("m.py")
    assert ended.code == 2
    assert f"cannot read the Dockerfile in {project.directory}/gone" in ended.err


def test_local_files_of_an_image(project: Project, server: FakeServer) -> None:
    project.write("data/a.txt", "A")
    project.write("data/skip.log", "")
    project.write("one.cfg", "1")
    project.write(
        "m.py",
        HEAD
        + """
image = (brisk.Image.from_name("web").add_local_dir("data", "/srv/data", ignore=["*.log"])
         .add_local_file("one.cfg", "/etc/").workdir("/srv"))
@app.function(image=image)
def f():
    return 1
""",
    )
    assert project.run("m.py").code == 0
    (image,) = server.images.values()
    assert image["base"] == {"kind": "image", "name": "web"}
    assert [step.get("text") or step["path"] for step in image["steps"]] == [
        "data -> /srv/data",
        "one.cfg -> /etc/one.cfg",
        "/srv",
    ]
    names = []
    for step in image["steps"][:2]:
        with tarfile.open(fileobj=io.BytesIO(server.blobs[step["blob"]])) as tar:
            names.append(tar.getnames())
    assert names == [["srv/data", "srv/data/a.txt"], ["etc/one.cfg"]]
    project.write(
        "m.py", HEAD + "@app.function(image=brisk.Image.debian_slim().add_local_file('gone', '/x'))\ndef f(): pass\n"
    )
    ended = project.run("m.py")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        2,
        f"brisk: add_local_file: there is no file {project.directory}/gone",
    )


def test_build_failure(project: Project, server: FakeServer) -> None:
    failed = "step 2 of 2, pip install nonsense: it failed with exit code 1"
    frames = [
        frame("step", index=1, total=2, text="debian_slim bookworm", cached=True),
        frame("step", index=2, total=2, text="pip install nonsense", cached=False),
        frame("log", "".join(f"line {n}\n" for n in range(100)).encode()),
        frame(
            "error", error={"class": "build_failed", "message": failed + "; the end of its output:\nline 98\nline 99"}
        ),
    ]
    server.replace["POST .*/images/build"] = lambda _: Reply(stream=frames)
    project.write("m.py", HEAD + "@app.function()\ndef f(): pass\n")
    ended = project.run("m.py")
    assert ended.code == 5
    lines = ended.err.splitlines()
    assert lines[:3] == [
        "brisk: building the image: 2/2 pip install nonsense",
        "brisk: this step of the image failed: pip install nonsense",
        "  | ... 70 lines before ...",
    ]
    assert lines[-2:] == ["  | line 99", f"brisk: {failed}"], "the output is shown once"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("invalid", 2),
        ("not_found", 3),
        ("exists", 2),
        ("unavailable", 7),
        ("corrupt", 70),
        ("timeout", 4),
        ("cancelled", 4),
        ("disk_full", 6),
        ("exhausted", 1),
        ("machine", 6),
        ("build_failed", 5),
        ("user_code", 1),
        ("interrupted", 70),
        ("internal", 70),
    ],
)
def test_exit_codes_of_failed_calls(project: Project, server: FakeServer, kind: str, code: int) -> None:
    failed = frame("failed", call="c", error={"class": kind, "message": "it went wrong", "hint": "Do better."})
    server.replace["POST .*/call"] = lambda _: Reply(stream=[failed])
    project.write("m.py", HEAD + "@app.function()\ndef f(): pass\n")
    ended = project.run("m.py")
    assert (ended.code, ended.err.splitlines()[-2:]) == (code, ["brisk: it went wrong", "Do better."])
    ended = project.run("m.py", "--json")
    assert ended.code == code
    assert json.loads(ended.err.splitlines()[-1]) == {
        "error": {"class": kind, "message": "it went wrong", "hint": "Do better."},
        "exit": code,
    }


def test_output_streams(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
import sys
@app.function()
def f():
    print("to out")
    print("to err", file=sys.stderr)
    return None
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (0, "to out\n")
    assert ended.err.endswith("to err\n")


def test_interrupt_cancels_the_call(project: Project, server: FakeServer) -> None:
    project.write(
        "m.py", HEAD + "@app.function()\ndef f():\n    import time\n    print('begun')\n    time.sleep(600)\n"
    )
    with project.start(str(SDK), "run", "m.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert server.cancelled.wait(60)


def test_interrupt_cancels_the_calls_of_all_threads(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
import concurrent.futures, time
@app.function()
def f(n):
    print("begun")
    time.sleep(600)
@app.local_entrypoint()
def main():
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(f.remote, range(5)))
""",
    )
    with project.start(str(SDK), "run", "m.py") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_reader_that_goes_away(project: Project) -> None:
    project.write("m.py", HEAD + "@app.local_entrypoint()\ndef main():\n    while True: print('y' * 1000)\n")
    with project.start(str(SDK), "run", "m.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 1


def test_entrypoint_decides_the_exit_code(project: Project) -> None:
    project.write("m.py", HEAD + "import sys\n@app.local_entrypoint()\ndef main(n: int):\n    sys.exit(n)\n")
    assert project.run("m.py", "--n", "9").code == 9


def test_async_entrypoint(project: Project) -> None:
    project.write("m.py", HEAD + "@app.local_entrypoint()\nasync def main():\n    print('async')\n")
    assert project.run("m.py").out == "async\n"


def test_uncaught_local_exception(project: Project) -> None:
    project.write("m.py", HEAD + "@app.local_entrypoint()\ndef main():\n    1 / 0\n")
    ended = project.run("m.py")
    assert ended.code == 1
    assert re.findall(r'File "(.*)", line (\d+), in (\w+)', ended.err) == [(f"{project.directory}/m.py", "5", "main")]
    assert ended.err.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_large_result(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
@app.function()
def f(n):
    return bytes(n)
@app.local_entrypoint()
def main():
    print(len(f.remote(200_000_000)))
""",
    )
    ended = project.run("m.py")
    assert (ended.code, ended.out) == (0, "200000000\n"), ended.err


def test_much_output(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function()\ndef f():\n    for _ in range(1000): print('z' * 9999)\n")
    ended = project.run("m.py")
    assert ended.code == 0
    assert len(ended.out) == 10_000_000
    assert set(ended.out) == {"z", "\n"}


def test_calls_from_inside_are_refused(project: Project) -> None:
    project.write("m.py", HEAD + "@app.function()\ndef g(): pass\n@app.function()\ndef f():\n    g.remote()\n")
    ended = project.run("m.py::f")
    assert ended.code != 0
    assert "cannot be called from inside containers yet" in ended.err


def test_image_imports(project: Project) -> None:
    project.write(
        "m.py",
        HEAD
        + """
image = brisk.Image.debian_slim()
with image.imports():
    import no_such_package
@app.function(image=image)
def f():
    pass
""",
    )
    ended = project.run("m.py")
    assert ended.code == 1, "here it was no error, inside it is"
    assert "No module named 'no_such_package'" in ended.err
    assert "in <module>" in ended.err
