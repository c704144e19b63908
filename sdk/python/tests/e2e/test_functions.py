"""What users meet when they run functions: how it should go, and each of the ways in which it goes wrong."""

from __future__ import annotations

import json
import signal

import pytest

from tests.e2e.conftest import Files

pytestmark = pytest.mark.e2e

HEAD = """\
import brisk
app = brisk.App("e2e")
"""


def test_hello(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
import os, sys
@app.function(env={"COLOUR": "blue"})
def f(name: str):
    print("to out")
    print("to err", file=sys.stderr)
    return name, os.environ["COLOUR"], brisk.is_local()
@app.local_entrypoint()
def main(name: str = "world"):
    print(f.remote(name), f.local.__name__, brisk.is_local())
""",
    )
    ended = files.run("m.py", "--name", "you")
    assert (ended.code, ended.out) == (0, "to out\n('you', 'blue', False) local True\n"), ended.err
    assert "to err\n" in ended.err
    ended = files.run("--json", "m.py::f", "--name", "x")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == ["x", "blue", False]
    assert "to out\n" in ended.err


def test_mistakes_before_the_call(files: Files) -> None:
    files.write("broken.py", "def f(:\n    pass\n")
    ended = files.run("broken.py")
    assert ended.code == 1
    assert 'broken.py", line 1' in ended.err
    assert ended.err.splitlines()[-1].startswith("SyntaxError: ")

    files.write("m.py", HEAD + "@app.function()\ndef f(n: int): return n\n")
    assert files.run("m.py::g").code == 3
    assert files.run("none.py").code == 3
    ended = files.run("m.py::f", "--n", "many")
    assert ended.code == 2
    assert "invalid int value: 'many'" in ended.err
    assert files.run("m.py::f").code == 2


def test_import_missing_in_the_image(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
if not brisk.is_local():
    import no_such_package
@app.function()
def f(): pass
""",
    )
    ended = files.run("m.py")
    assert ended.code == 1
    assert '/opt/brisk/code/m.py", line 5, in <module>' in ended.err
    assert "No module named 'no_such_package'" in ended.err
    assert ".pip_install(...)" in ended.err


def test_what_cannot_be_pickled(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
import threading
@app.function()
def f(x=None): return threading.Lock()
@app.local_entrypoint()
def main(arguments: bool):
    f.remote(threading.Lock() if arguments else None)
""",
    )
    ended = files.run("m.py", "--arguments")
    assert ended.code == 1
    assert "the arguments of f cannot be pickled" in ended.err
    ended = files.run("m.py", "--no-arguments")
    assert ended.code == 1
    assert "the result, a lock, cannot be pickled" in ended.err


def test_exceptions(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
import sys
module = "class Odd(Exception): pass"
image = brisk.Image.debian_slim().run_commands(f"mkdir /srv/lib && echo '{module}' > /srv/lib/only_there.py")
class Mine(Exception): pass
@app.function(image=image)
def f(mine):
    if mine:
        raise Mine("known", 7)
    sys.path.append("/srv/lib")
    import only_there
    raise only_there.Odd("unknown")
@app.local_entrypoint()
def main(caught: bool):
    try:
        f.remote(True)
    except Mine as e:
        print(e.args, "in f" in str(e.__cause__))
    try:
        f.remote(False)
    except brisk.RemoteError as e:
        print(e.type_name, "in f" in e.traceback)
    if not caught:
        f.remote(True)
""",
    )
    ended = files.run("m.py", "--caught")
    assert (ended.code, ended.out) == (0, "('known', 7) True\nonly_there.Odd True\n"), ended.err
    ended = files.run("m.py", "--no-caught")
    assert ended.code == 1
    remote, local = ended.err.split("It was called here:\n")
    assert '/opt/brisk/code/m.py", line 11, in f' in remote
    assert remote.endswith("m.Mine: ('known', 7)\n")
    assert ", in main\n" in local


def test_closures_and_serialized_functions(files: Files) -> None:
    files.write(
        "m.py",
        """
import sys
import brisk
app = brisk.App("e2e")
@app.function()
def version():
    return sys.version_info[:2]
def make(k):
    @app.function(name=f"times{k}")
    def times(n): return n * k
    return times
double, treble = make(2), make(3)
@app.function(serialized=True)
def keep(f): return f(20)
@app.local_entrypoint()
def main():
    if version.remote() != sys.version_info[:2]:
        try:
            double.remote(1)
        except brisk.SerializationError as e:
            print("refused" if "need the same version on both sides" in str(e) else e)
        return
    print(double.remote(5), treble.remote(5), keep.remote(lambda n: n + 1))
""",
    )
    ended = files.run("m.py")
    assert ended.code == 0, ended.err
    assert ended.out in ("10 15 21\n", "refused\n")


def test_process_that_ends(files: Files) -> None:
    files.write("m.py", HEAD + "import os\n@app.function()\ndef f(n: int): os._exit(n) if n else print('alive')\n")
    ended = files.run("m.py::f", "--n", "3")
    assert ended.code == 1
    assert "3" in ended.err.splitlines()[-1] or "3" in ended.err.splitlines()[-2]
    assert files.run("m.py::f", "--n", "0").out == "alive\n"


def test_function_that_needs_too_much_memory(files: Files) -> None:
    files.write(
        "m.py", HEAD + "@app.function(memory=256)\ndef f(mib: int): return len(bytearray(b'x') * (mib << 20))\n"
    )
    ended = files.run("m.py::f", "--mib", "1024")
    assert ended.code == 1
    assert "memory" in ended.err
    assert files.run("m.py::f", "--mib", "1").out == "1048576\n"


def test_function_that_never_returns(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
@app.function(timeout=2)
def f(forever: bool):
    while forever: pass
    print("returned")
""",
    )
    ended = files.run("m.py", "--forever")
    assert ended.code == 4, ended.err
    assert files.run("m.py", "--no-forever").out == "returned\n"


def test_much_output(files: Files) -> None:
    files.write("m.py", HEAD + "@app.function()\ndef f():\n    for _ in range(10_000): print('z' * 9_999)\n")
    ended = files.run("m.py")
    assert ended.code == 0, ended.err
    assert len(ended.out) == 100_000_000
    assert ended.out.count("\n") == 10_000


def test_large_arguments_and_results(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
@app.function(memory=4096)
def f(data, n): return len(data), b"y" * n
@app.local_entrypoint()
def main():
    n, data = f.remote(b"x" * 50_000_000, 200_000_000)
    print(n, len(data), data.count(b"y"))
""",
    )
    ended = files.run("m.py")
    assert (ended.code, ended.out) == (0, "50000000 200000000 200000000\n"), ended.err


def test_images(files: Files) -> None:
    (files.directory / "data").mkdir()
    files.write("data/a.txt", "from here\n")
    files.write("data/b.log", "")
    files.write(
        "m.py",
        HEAD
        + """
import os
image = (brisk.Image.debian_slim().run_commands("echo built > /srv/built").env({"LEVEL": "9"})
         .add_local_dir("data", "/srv/data", ignore=["*.log"]).workdir("/srv/data"))
@app.function(image=image)
def f():
    return open("a.txt").read(), open("/srv/built").read(), os.environ["LEVEL"], sorted(os.listdir())
""",
    )
    ended = files.run("m.py")
    assert (ended.code, ended.out) == (0, "('from here\\n', 'built\\n', '9', ['a.txt'])\n"), ended.err
    assert "building the image" not in files.run("m.py").err, "every step is there already"


def test_build_that_fails(files: Files) -> None:
    files.write(
        "m.py",
        HEAD
        + """
image = brisk.Image.debian_slim().run_commands("echo this is why; exit 3")
@app.function(image=image)
def f(): pass
""",
    )
    ended = files.run("m.py")
    assert ended.code == 5, ended.err
    assert "  | this is why\n" in ended.err


def test_interrupt(files: Files) -> None:
    files.write("m.py", HEAD + "import time\n@app.function()\ndef f():\n    print('begun')\n    time.sleep(600)\n")
    with files.start("m.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_randomness_differs_between_containers(files: Files) -> None:
    """Containers that start from one snapshot do not repeat each other's random numbers."""
    files.write(
        "m.py",
        HEAD
        + """
import concurrent.futures, os, random, time
@app.function(max_containers=3)
def f():
    time.sleep(0.2)
    return os.environ["BRISK_INSTANCE"], random.random()
@app.local_entrypoint()
def main():
    for _ in range(2):
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            seen = [x for _, x in pool.map(lambda _: f.remote(), range(3))]
        assert len(set(seen)) == 3, seen
    print("ok")
""",
    )
    for _ in range(2):
        ended = files.run("m.py")
        assert (ended.code, ended.out) == (0, "ok\n"), ended.err
