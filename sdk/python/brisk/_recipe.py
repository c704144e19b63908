"""From an Image to the definition that the server builds: local files become uploaded blobs."""

from __future__ import annotations

import os
import shlex
from typing import Any

from brisk import _registry, _tar, exception
from brisk._client import Client
from brisk._image import Image


def resolve(image: Image, client: Client) -> dict[str, Any]:
    """Read what the image needs from here, and upload it.

    Args:
        image: the recipe.
        client: where blobs go.

    Returns:
        The API's image definition.

    Raises:
        exception.InvalidError: a local file is missing or unusable.
    """
    return {"base": _base(dict(image._base), client), "steps": [_step(dict(step), client) for step in image._steps]}


def _base(base: dict[str, Any], client: Client) -> dict[str, Any]:
    if base["kind"] == "registry":
        auth = _registry.credentials(base["ref"], base.pop("username", None), base.pop("password_env", None))
        return {**base, "auth": auth} if auth else base
    if base["kind"] != "dockerfile":
        return base
    path, context = base["path"], base["context"]
    text = _read("Dockerfile", path)
    candidates = [f"{path}.dockerignore", os.path.join(context, ".dockerignore")]
    patterns = next((_read("patterns", name) for name in candidates if os.path.exists(name)), "")
    with _tar.pack(_tar.walk_context(context, patterns), modes=True) as blob:
        client.put_blob(blob.digest, blob.file, blob.size)
        return {"kind": "dockerfile", "dockerfile": text, "context": blob.digest, "build_args": base["build_args"]}


def _read(what: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise exception.InvalidError(f"cannot read the {what} in {path}: {exc}") from None


def _step(step: dict[str, Any], client: Client) -> dict[str, Any]:
    kind = step["kind"]
    if kind == "requirements":
        return read_requirements(step["path"], step["options"])
    if kind == "add_file":
        path = os.path.realpath(step["source"])
        if not os.path.isfile(path):
            raise exception.InvalidError(f"add_local_file: there is no file {step['source']}")
        members = {step["destination"].lstrip("/"): path}
    elif kind == "add_dir":
        members = _tar.walk(step["source"], step["destination"], step["ignore"])
    else:
        return step
    with _tar.pack(members) as blob:
        client.put_blob(blob.digest, blob.file, blob.size)
        return {
            "kind": "add",
            "blob": blob.digest,
            "text": f"{os.path.basename(step['source'])} -> {step['destination']}",
        }


def read_requirements(path: str, options: list[str]) -> dict[str, Any]:
    """A requirements file as a pip_install step.

    Raises:
        exception.InvalidError: it cannot be read, or holds what has no meaning outside of a file.
    """
    text = _read("requirements", path)
    packages: list[str] = []
    found: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        line = (" " + line).split(" #", 1)[0].strip()
        if not line:
            continue
        if line.startswith(("-r", "--req", "-c", "--constraint", "-e", "--editable")) or "--hash" in line:
            raise exception.InvalidError(
                f"{path}: {line!r} is not supported",
                hint="Add the file with .add_local_file(...), and run pip with .run_commands(...).",
            )
        if line.startswith("-"):
            found += shlex.split(line)
        else:
            packages.append(" ".join(line.split()))
    if not packages:
        raise exception.InvalidError(f"{path} lists no packages")
    return {"kind": "pip_install", "packages": packages, "options": found + options}
