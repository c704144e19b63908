"""Which of the user's code travels with a function.

The entry file, and every first-party module that has been imported: one whose file lies beneath the directory of the
entry file, but not in an environment of installed packages there. They are laid out by module name, whatever the
directories here are called, with their packages' __init__; data files are not code, and go into images.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Optional

from brisk import _tar, exception

_INSTALLED = ("/site-packages/", "/dist-packages/")


def module_name(module: types.ModuleType) -> str:
    """The name that a container imports the module by: for a script that runs as __main__, that of its file.

    Raises:
        exception.InvalidError: its file's name cannot be a module's.
    """
    if module.__name__ != "__main__":
        return module.__name__
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:  # python -m package.module
        name: str = spec.name
        return name
    return check_stem(_file(module) or "")


def check_stem(path: str) -> str:
    """The module name of an entry file.

    Raises:
        exception.InvalidError: it is none, or one that Python itself uses.
    """
    stem = os.path.splitext(os.path.basename(path))[0]
    if not stem.isidentifier() or not stem.isascii():
        raise exception.InvalidError(
            f"{os.path.basename(path)} cannot be imported: {stem!r} is not a module name",
            hint="Rename the file: letters, digits and '_', and '.py'.",
        )
    if stem == "brisk" or _is_stdlib(stem):
        raise exception.InvalidError(
            f"{os.path.basename(path)} has the name of a module of {'Brisk' if stem == 'brisk' else 'Python'}'s own",
            hint="Rename the file.",
        )
    return stem


def _is_stdlib(name: str) -> bool:
    known = getattr(sys, "stdlib_module_names", None)  # from 3.10 on
    if known is not None:
        return name in known
    return name in sys.builtin_module_names or any(
        os.path.exists(os.path.join(os.path.dirname(os.__file__), name + suffix)) for suffix in (".py", "/__init__.py")
    )


def collect(module: types.ModuleType, sources: tuple[str, ...] = ()) -> dict[str, str]:
    """The members of a code tar.

    Args:
        module: of the function.
        sources: further top-level modules, by name.

    Returns:
        Names in the tar to paths here.
    """
    members: dict[str, str] = {}
    entry = _file(module)
    if entry is not None:
        root = _root(module, entry)
        for other in [*sys.modules.values()]:
            path = _file(other) if isinstance(other, types.ModuleType) else None
            if path is not None and _is_first_party(path, root):
                members[_place(module_name(other) if other is module else other.__name__, path)] = path
        members[_place(module_name(module), entry)] = entry
    for name in sources:
        members.update(_source(name))
    return {name: os.path.realpath(path) for name, path in members.items()}  # code holds no links


def _root(module: types.ModuleType, entry: str) -> str:
    """The directory that the module is imported from: above its package."""
    root = os.path.dirname(entry)
    depth = module_name(module).count(".") + (os.path.basename(entry) == "__init__.py")
    for _ in range(depth):
        root = os.path.dirname(root)
    return root


def _file(module: types.ModuleType) -> Optional[str]:
    """The absolute path of a module's source or extension file."""
    path = getattr(module, "__file__", None)
    if not isinstance(path, str) or not os.path.isfile(path):
        return None
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _is_first_party(path: str, root: str) -> bool:
    if not path.startswith(root.rstrip("/") + "/") or any(part in path for part in _INSTALLED):
        return False
    stdlib, here = os.path.dirname(os.path.realpath(os.__file__)), os.path.dirname(os.path.realpath(__file__))
    return not path.startswith((stdlib + "/", here + "/"))


def _place(name: str, path: str) -> str:
    """Where a module lies in the tar: by its name, with its file's own suffix."""
    base = os.path.basename(path)
    directory, _, last = name.rpartition(".")
    if base.split(".")[0] == "__init__":
        return "/".join([*name.split("."), base])
    return "/".join([*filter(None, directory.split(".")), last + base[base.index(".") :]])


def _source(name: str) -> dict[str, str]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return _tar.walk(next(iter(spec.submodule_search_locations)), name)
    if spec is not None and spec.origin and os.path.isfile(spec.origin):
        return {_place(name, spec.origin): spec.origin}
    raise exception.NotFoundError(f"add_local_python_source: there is no module {name} here")
