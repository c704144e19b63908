"""Images: what a container's root filesystem is made of."""

from __future__ import annotations

import os
import shlex

from brisk import exception
from brisk._context import is_local
from brisk._spec import check_env

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Optional, Union


class Image:
    """A recipe for an image, immutable: each method gives a new one with a further step.

    ::

        image = brisk.Image.debian_slim().apt_install("ffmpeg").pip_install("numpy", "pillow")

    The image is built when a function of it is first called, and each step is built once: what has the same steps so
    far shares them. Local files are read then, too; a recipe can be made anywhere, inside containers as well.
    """

    _base: Mapping[str, Any]
    _steps: tuple[Mapping[str, Any], ...]
    _sources: tuple[str, ...]

    def __init__(self) -> None:
        raise exception.InvalidError("an Image begins with Image.debian_slim() or one of Image.from_...(...)")

    @classmethod
    def _make(cls, base: Mapping[str, Any], steps: tuple[Mapping[str, Any], ...], sources: tuple[str, ...]) -> Image:
        image = object.__new__(cls)
        image._base, image._steps, image._sources = base, steps, sources
        return image

    @staticmethod
    def debian_slim(python_version: Optional[str] = None, suite: str = "bookworm") -> Image:
        """A small Debian with Python and pip.

        Args:
            python_version: such as "3.11"; default the suite's own.
            suite: Debian's name of the release.
        """
        if python_version is not None and not isinstance(python_version, str):
            raise exception.InvalidError(f"python_version={python_version!r}: want a string such as '3.11'")
        _strings("suite", [suite])
        return Image._make({"kind": "debian_slim", "suite": suite, "python_version": python_version}, (), ())

    @staticmethod
    def from_name(name: str) -> Image:
        """An image that the server has: imported with `brisk image import`, or built.

        Args:
            name: its name, or its digest (at least 8 digits). It must hold a python3 to run functions.
        """
        _strings("name", [name])
        return Image._make({"kind": "image", "name": name}, (), ())

    @staticmethod
    def from_registry(
        ref: str, *, username: Optional[str] = None, password_env: Optional[str] = None, insecure: bool = False
    ) -> Image:
        """A container image of a registry.

        What the reference means is asked at each build, and what it led to before is not fetched again.

        Credentials are looked for where docker, podman and buildah keep them, helpers included, here and else for the
        user whom the server runs as; so after a `docker login` nothing has to be said. Others are named::

            brisk.Image.from_registry("ghcr.io/org/app:1", username="ci", password_env="GHCR_TOKEN")

        Args:
            ref: as docker takes it: "python:3.12-slim", "ghcr.io/org/app:1", "localhost:5000/app@sha256:...". The
                image must hold a python3 to run functions.
            username: for the registry.
            password_env: the name of the environment variable that holds the password, or an access token, where the
                image is built from. It is read for the build only, and is part of neither image nor function.
            insecure: allow plain http, and certificates that the server does not trust. For localhost, http is allowed
                without.
        """
        _strings("ref", [ref])
        if (username is None) != (password_env is None):
            raise exception.InvalidError("from_registry: username and password_env belong together")
        if not isinstance(insecure, bool):
            raise exception.InvalidError(f"insecure={insecure!r}: want True or False")
        more: dict[str, Any] = {"insecure": True} if insecure else {}
        if username is not None and password_env is not None:
            _strings("username", [username])
            _strings("password_env", [password_env])
            more.update(username=username, password_env=password_env)
        return Image._make({"kind": "registry", "ref": ref, **more}, (), ())

    @staticmethod
    def from_dockerfile(
        path: str, context_dir: Optional[str] = None, build_args: Optional[Mapping[str, str]] = None
    ) -> Image:
        """What a Dockerfile makes.

        It is built on the server's machine by buildah, docker or buildctl, whichever is installed, outside of Brisk's
        sandboxes; and again when the Dockerfile, the arguments or a file of the context have changed.

        Args:
            path: of the Dockerfile, here. The image that it makes must hold a python3 to run functions.
            context_dir: the directory that COPY and ADD copy from; default the one that the Dockerfile is in. What
                its .dockerignore names (or that of the Dockerfile: NAME.dockerignore) stays here.
            build_args: values for ARG.
        """
        base: dict[str, Any] = {"kind": "dockerfile", "path": _here(path), "build_args": check_env(build_args or {})}
        base["context"] = os.path.dirname(base["path"]) if context_dir is None else _here(context_dir)
        return Image._make(base, (), ())

    def apt_install(self, *packages: str) -> Image:
        """Install Debian packages.

        Args:
            packages: names, each possibly with "=version".
        """
        return self._with_list("apt_install", "packages", packages)

    def pip_install(self, *packages: str, extra_options: Union[str, Sequence[str]] = ()) -> Image:
        """Install Python packages.

        Args:
            packages: as pip takes them: "numpy", "torch==2.4", a URL.
            extra_options: of pip, such as "--no-deps --index-url URL"; a string is split as a shell does.
        """
        return self._with_list("pip_install", "packages", packages, options=_options(extra_options))

    def pip_install_from_requirements(self, path: str, *, extra_options: Union[str, Sequence[str]] = ()) -> Image:
        """Install the Python packages that a requirements file lists.

        Args:
            path: of the file, here. Package lines and options that pip also takes on its command line are
                understood; other files (-r, -c, -e) and hashes are not.
            extra_options: of pip, as for pip_install.
        """
        return self._with({"kind": "requirements", "path": _here(path), "options": _options(extra_options)})

    def run_commands(self, *commands: str) -> Image:
        """Run shell commands as root, with network.

        Args:
            commands: each by "/bin/sh -c", one after the other; the first that fails ends the build.
        """
        return self._with_list("run", "commands", commands)

    def env(self, variables: Mapping[str, str]) -> Image:
        """Set environment variables, for further steps and for containers.

        Args:
            variables: names and values, strings both.
        """
        return self._with({"kind": "env", "vars": check_env(variables)}) if variables else self

    def workdir(self, path: str) -> Image:
        """Set the working directory, for further steps and for containers; it is made if need be.

        Args:
            path: absolute.
        """
        return self._with({"kind": "workdir", "path": _inside(path)})

    def add_local_file(self, source: str, destination: str) -> Image:
        """Copy a file into the image.

        Args:
            source: path here.
            destination: absolute path inside; one that ends in "/" is the directory that it goes into.
        """
        target = _inside(destination)
        if destination.endswith("/"):
            target = os.path.join(target, os.path.basename(source))
        return self._with({"kind": "add_file", "source": _here(source), "destination": target})

    def add_local_dir(self, source: str, destination: str, *, ignore: Sequence[str] = ()) -> Image:
        """Copy a directory into the image. Symbolic links in it are copied as links; __pycache__ stays behind.

        Args:
            source: path here.
            destination: absolute path inside, of the directory itself.
            ignore: patterns of what to leave out, as in .gitignore but without "!": "*.log" and "data/" anywhere,
                "/build" and "docs/*.md" from the source's root on, "**" for any number of directories.
        """
        if isinstance(ignore, str):
            raise exception.InvalidError(f"ignore={ignore!r}: want a list of patterns")
        _strings("ignore", ignore)
        return self._with(
            {"kind": "add_dir", "source": _here(source), "destination": _inside(destination), "ignore": list(ignore)}
        )

    def add_local_python_source(self, *modules: str) -> Image:
        """Make local modules importable in the functions of this image.

        They travel with the functions' code, not in the image, so that changing them builds nothing; and what the
        functions' own modules import from beside the entry file travels anyway.

        Args:
            modules: names of top-level modules or packages, as they are imported here.
        """
        _strings("module", modules)
        for name in modules:
            if not name.isidentifier():
                raise exception.InvalidError(f"{name!r} is not the name of a top-level module")
        return Image._make(self._base, self._steps, self._sources + tuple(modules))

    def imports(self) -> Imports:
        """A context for imports of what is only in the image.

        ::

            with image.imports():
                import torch

        Here, a module that is missing is no error; inside a container it is.
        """
        return Imports()

    def _with(self, step: Mapping[str, Any]) -> Image:
        return Image._make(self._base, (*self._steps, step), self._sources)

    def _with_list(self, kind: str, key: str, values: Sequence[str], **more: Any) -> Image:
        _strings(key, values)
        return self._with({"kind": kind, key: list(values), **more}) if values else self

    def __repr__(self) -> str:
        begin = [str(self._base[name]) for name in ("suite", "name", "ref", "path") if name in self._base]
        parts = [*begin, *(str(step["kind"]) for step in self._steps)]
        return f"<brisk.Image {' + '.join(parts)}>"


class Imports:
    """The context that Image.imports gives."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Optional[type[BaseException]], exc: object, tb: object) -> bool:
        return kind is not None and issubclass(kind, ImportError) and is_local()


def _strings(what: str, values: Sequence[str]) -> None:
    for value in values:
        if not isinstance(value, str) or not value or "\0" in value:
            raise exception.InvalidError(f"{what}: {value!r}: want a string that is not empty")


def _options(options: Union[str, Sequence[str]]) -> list[str]:
    if isinstance(options, str):
        return shlex.split(options)
    _strings("extra_options", options)
    return list(options)


def _here(path: str) -> str:
    path = os.fspath(path)
    _strings("path", [path])
    return os.path.abspath(path)


def _inside(path: str) -> str:
    _strings("path", [path])
    if not path.startswith("/"):
        raise exception.InvalidError(f"{path!r}: a path inside the image must be absolute")
    return os.path.normpath("/" + path.lstrip("/"))
