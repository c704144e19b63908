"""The public interface: its names, and what it refuses."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brisk
from brisk import _recipe, exception
from tests.nodepeer import SDK

NAMES = [
    "App",
    "BuildError",
    "CancelledError",
    "ConnectionError",
    "CorruptError",
    "Error",
    "ExistsError",
    "Function",
    "Image",
    "InternalError",
    "InterruptedError",
    "InvalidError",
    "LocalEntrypoint",
    "MachineError",
    "NotFoundError",
    "RemoteError",
    "RemoteTraceback",
    "ResourceError",
    "SerializationError",
    "ServerError",
    "TimeoutError",
    "UnavailableError",
    "exception",
    "is_local",
]

METHODS = {
    "App": ["entrypoints", "function", "functions", "local_entrypoint", "name"],
    "Function": ["app", "image", "local", "name", "remote"],
    "LocalEntrypoint": ["name"],
    "Image": [
        "add_local_dir",
        "add_local_file",
        "add_local_python_source",
        "apt_install",
        "debian_slim",
        "env",
        "from_dockerfile",
        "from_name",
        "from_registry",
        "imports",
        "pip_install",
        "pip_install_from_requirements",
        "run_commands",
        "workdir",
    ],
}


def test_public_names() -> None:
    assert sorted(brisk.__all__) == sorted(NAMES)
    assert [name for name in dir(brisk) if not name.startswith("_")] == sorted(NAMES)
    for name in NAMES:
        assert getattr(brisk, name) is not None
    with pytest.raises(AttributeError, match="module 'brisk' has no attribute 'nonsense'"):
        brisk.nonsense  # noqa: B018


@pytest.mark.parametrize("kind", METHODS)
def test_public_methods(kind: str) -> None:
    cls = getattr(brisk, kind)
    assert sorted(name for name in vars(cls) if not name.startswith("_")) == METHODS[kind]
    for name in METHODS[kind]:
        assert inspect.getdoc(getattr(cls, name)), f"{kind}.{name} has no docstring"


def test_parameters_of_function() -> None:
    assert list(inspect.signature(brisk.App.function).parameters)[1:] == [
        *["image", "cpu", "memory", "pids", "timeout", "startup_timeout", "scaledown_window", "min_containers"],
        *["max_containers", "buffer_containers", "env", "block_network", "allow_networks", "user"],
        *["enable_memory_snapshot", "serialized", "name"],
    ]


def test_documented_exception_tree() -> None:
    """The drawing atop brisk.exception is the tree."""
    assert exception.__doc__ is not None
    drawn: dict[str, str] = {}
    above = ["Error"]
    for line in exception.__doc__.splitlines():
        match = re.match(r"^ {4}( [ │]  )*( [├└]─ )(\w+)", line)
        if match:
            depth = (match.start(3) - 4) // 4
            above[depth:] = [match[3]]
            drawn[match[3]] = above[depth - 1]
    real = {
        kind.__name__: kind.__bases__[0].__name__
        for kind in vars(exception).values()
        if isinstance(kind, type) and issubclass(kind, brisk.Error) and kind is not brisk.Error
    }
    assert drawn == real


def test_importing_the_sdk_is_lazy() -> None:
    code = "import brisk, sys; print([m for m in sys.modules if m.startswith('brisk')])"
    out = subprocess.run([sys.executable, "-c", code], cwd=SDK, capture_output=True, text=True, check=True).stdout
    assert out == "['brisk']\n"


app = brisk.App("tests")


@app.function()
def double(n: int) -> int:
    """Doubles."""
    return 2 * n


def test_function() -> None:
    assert double.local(4) == 8
    assert double.name == "double"
    assert double.app is app
    assert inspect.getdoc(double) == "Doubles."
    assert repr(double) == "<brisk.Function tests.double>"
    with pytest.raises(TypeError, match=r"use double.remote\(...\) .* or double.local\(...\)"):
        double(4)


def test_functions_pickle_by_name() -> None:
    assert pickle.loads(pickle.dumps(double)) is double


def test_method_is_refused() -> None:
    class A:
        @brisk.App("b").function()
        def method(self) -> None: ...

    with pytest.raises(exception.InvalidError, match="cannot be used as a method"):
        A().method  # noqa: B018


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpu": "1"}, "cpu='1': want a number"),
        ({"cpu": 0}, "cpu=0: want more than 0"),
        ({"cpu": True}, "cpu=True: want a number"),
        ({"cpu": float("nan")}, "cpu=nan: want more than 0"),
        ({"memory": 1.5}, "memory=1.5: want a whole number"),
        ({"pids": -1}, "pids=-1: want more than 0"),
        ({"timeout": float("inf")}, "timeout=inf: want more than 0"),
        ({"min_containers": -1}, "min_containers=-1: want 0 or more"),
        ({"max_containers": 0}, "max_containers=0: want more than 0"),
        ({"min_containers": 3, "max_containers": 2}, "min_containers=3 is more than max_containers=2"),
        ({"env": {"A": 1}}, "env: 'A'=1: names and values must be strings"),
        ({"env": {"A=B": ""}}, "env: 'A=B' is not a usable name"),
        ({"env": {"BRISK_INSTANCE": "x"}}, "names that begin with BRISK_ are Brisk's own"),
        ({"allow_networks": "10.0.0.0/8"}, "want a list of CIDR prefixes"),
        ({"allow_networks": ["10.0.0.0/99"]}, "'10.0.0.0/99' is not a CIDR prefix"),
        ({"allow_networks": ["10.0.0.0/8"], "block_network": True}, "contradict each other"),
        ({"block_network": "no"}, "block_network='no': want True or False"),
        ({"user": 1000}, "user=1000: want a string"),
        ({"image": "debian"}, "image='debian': want a brisk.Image"),
        ({"name": "a/b"}, "function name 'a/b': want 1 to 128"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(exception.InvalidError, match=re.escape(message)):
        brisk.App("a").function(**options)(lambda: None)


def test_spec() -> None:
    function = brisk.App("a").function(
        cpu=2, memory=64, timeout=0.5, allow_networks=["10.1.2.3/8"], user="nobody", enable_memory_snapshot=False
    )(lambda: None)
    assert function._spec == {
        "cpu": 2,
        "memory": 64,
        "timeout": 0.5,
        "min_containers": 0,
        "buffer_containers": 0,
        "allow_networks": ["10.0.0.0/8"],
        "user": "nobody",
        "block_network": False,
        "snapshot": False,
    }


def test_wrong_uses_of_app() -> None:
    for name in ("", "a b", "-a", "x" * 129, 3):
        with pytest.raises(exception.InvalidError, match="app name"):
            brisk.App(name)  # type: ignore[arg-type]
    own = brisk.App("a")
    for thing in (3, print, double, int):
        with pytest.raises(exception.InvalidError, match="takes a plain function"):
            own.function()(thing)  # type: ignore[arg-type]
    own.function(name="f")(lambda: 1)
    with pytest.raises(exception.InvalidError, match="two functions named f"):
        own.function(name="f")(test_spec)


def test_images_are_immutable() -> None:
    base = brisk.Image.debian_slim("3.12")
    first = base.apt_install("a")
    second = base.apt_install("b")
    assert [len(image._steps) for image in (base, first, second)] == [0, 1, 1]
    assert base.pip_install() is base
    assert repr(first.env({"A": "1"})) == "<brisk.Image bookworm + apt_install + env>"
    assert pickle.loads(pickle.dumps(first))._steps == first._steps
    assert repr(brisk.Image.from_registry("python:3.12").workdir("/x")) == "<brisk.Image python:3.12 + workdir>"
    assert repr(brisk.Image.from_dockerfile("/a/Dockerfile")) == "<brisk.Image /a/Dockerfile>"
    with pytest.raises(exception.InvalidError, match="begins with"):
        brisk.Image()


@pytest.mark.parametrize(
    "build",
    [
        lambda image: image.apt_install(3),
        lambda image: image.pip_install(""),
        lambda image: image.run_commands(["ls"]),
        lambda image: image.env({"A": 1}),
        lambda image: image.workdir("relative"),
        lambda image: image.add_local_file("a", "relative"),
        lambda image: image.add_local_dir("a", "/b", ignore="*.log"),
        lambda image: image.add_local_python_source("a.b"),
        lambda _: brisk.Image.debian_slim(python_version=3.11),  # type: ignore[arg-type]
        lambda _: brisk.Image.from_name(""),
        lambda _: brisk.Image.from_registry(""),
        lambda _: brisk.Image.from_registry("a", username="ada"),
        lambda _: brisk.Image.from_registry("a", password_env="TOKEN"),
        lambda _: brisk.Image.from_registry("a", insecure=1),  # type: ignore[arg-type]
        lambda _: brisk.Image.from_registry("a", username="ada", password_env=""),
        lambda _: brisk.Image.from_dockerfile("", build_args={"A": "1"}),
        lambda _: brisk.Image.from_dockerfile("Dockerfile", build_args={"A": 1}),  # type: ignore[dict-item]
    ],
)
def test_wrong_images(build: Any) -> None:
    with pytest.raises(exception.InvalidError):
        build(brisk.Image.debian_slim())


def test_pip_options() -> None:
    image = brisk.Image.debian_slim().pip_install("a", extra_options="--index-url 'http://x y'")
    assert image._steps[0]["options"] == ["--index-url", "http://x y"]
    image = brisk.Image.debian_slim().pip_install("a", extra_options=["--pre"])
    assert image._steps[0]["options"] == ["--pre"]


def test_requirements(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text(
        "# comment\nnumpy==2.0  # why\n\n--extra-index-url https://x/#egg\npandas>=2 ; \\\n  python_version > '3'\n"
    )
    assert _recipe.read_requirements(str(path), ["--pre"]) == {
        "kind": "pip_install",
        "packages": ["numpy==2.0", "pandas>=2 ; python_version > '3'"],
        "options": ["--extra-index-url", "https://x/#egg", "--pre"],
    }
    for text in ("-r other.txt\n", "-e .\n", "a==1 --hash=sha256:00\n", "# nothing\n"):
        path.write_text(text)
        with pytest.raises(exception.InvalidError):
            _recipe.read_requirements(str(path), [])
    with pytest.raises(exception.InvalidError, match="cannot read the requirements"):
        _recipe.read_requirements(str(tmp_path / "none"), [])


def test_imports_context(monkeypatch: pytest.MonkeyPatch) -> None:
    image = brisk.Image.debian_slim()
    with image.imports():
        import no_such_package  # type: ignore[import-not-found]
    with pytest.raises(ZeroDivisionError), image.imports():
        1 / 0  # noqa: B018
    monkeypatch.setenv("BRISK_INSTANCE", "i")
    assert not brisk.is_local()
    with pytest.raises(ImportError), image.imports():
        import no_such_package  # noqa: F401


def test_errors_say_their_hint() -> None:
    error = brisk.NotFoundError("no image web", hint="Import it.")
    assert str(error) == "no image web\nImport it."
    assert str(brisk.Error("plain")) == "plain"
    assert str(brisk.TimeoutError("late", hint="Wait.")) == "late\nWait."
