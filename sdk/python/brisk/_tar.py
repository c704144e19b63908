"""Tars that depend on nothing but names and content, so that equal content has an equal digest.

Members are sorted by name and belong to uid 0 and gid 0; times are 1970; modes are 0755 for directories and executable
files, and 0644 for others, unless they are asked for.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from brisk import exception

_PIECE = 1 << 20


@dataclass(frozen=True)
class Blob:
    """Content to upload: a file, its size in bytes and its digest ("sha256:" and hexadecimal digits)."""

    file: BinaryIO
    size: int
    digest: str


@contextmanager
def pack(members: Mapping[str, str], *, modes: bool = False) -> Iterator[Blob]:
    """Make a tar in a temporary file that is gone after the block.

    Args:
        members: names in the tar, relative, to paths here. Directories are not descended into.
        modes: keep the files' own permission bits.

    Raises:
        exception.InvalidError: a path cannot be read, or is neither file, directory nor symbolic link.
    """
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in sorted(members):
                try:
                    _add(tar, name, members[name], modes)
                except OSError as exc:
                    raise exception.InvalidError(f"cannot read {members[name]}: {exc.strerror or exc}") from None
        yield seal(file)


def seal(file: BinaryIO) -> Blob:
    """Digest a file that has been written."""
    digest = hashlib.sha256()
    size = 0
    file.seek(0)
    for piece in iter(lambda: file.read(_PIECE), b""):
        digest.update(piece)
        size += len(piece)
    return Blob(file, size, "sha256:" + digest.hexdigest())


def _add(tar: tarfile.TarFile, name: str, path: str, modes: bool) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = 0
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, os.readlink(path)
        tar.addfile(info)
    elif stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, found.st_mode & 0o777 if modes else 0o755
        tar.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        info.mode = found.st_mode & 0o777 if modes else 0o755 if found.st_mode & 0o100 else 0o644
        with open(path, "rb") as content:
            info.size = os.fstat(content.fileno()).st_size  # as it is now: a file may change while we look
            tar.addfile(info, content)
    else:
        raise exception.InvalidError(f"{path} is neither a file, a directory nor a symbolic link")


def walk(source: str, destination: str, ignore: Sequence[str] = ()) -> dict[str, str]:
    """List a directory as members for pack.

    Args:
        source: the directory here.
        destination: its absolute path inside.
        ignore: patterns; see Image.add_local_dir.
    """
    ignored = _Ignore(ignore)
    root = os.path.realpath(source)
    if not os.path.isdir(root):
        raise exception.InvalidError(f"{source} is not a directory")
    members = {destination.lstrip("/"): root} if destination != "/" else {}
    for directory, subdirectories, files in os.walk(root):
        below = os.path.relpath(directory, root)
        subdirectories[:] = [d for d in subdirectories if not ignored(_join(below, d), True)]
        for entry in subdirectories + [f for f in files if not ignored(_join(below, f), False)]:
            path = os.path.join(directory, entry)
            members[os.path.join(destination, _join(below, entry)).lstrip("/")] = path
    return members


def _join(directory: str, entry: str) -> str:
    return entry if directory == "." else f"{directory}/{entry}"


class _Ignore:
    """Patterns as in .gitignore, without negation, and byte code."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compile(pattern) for pattern in ["__pycache__/", "*.pyc", *patterns]]

    def __call__(self, path: str, is_directory: bool) -> bool:
        return any((is_directory or not only_dirs) and regex.match(path) for regex, only_dirs in self._patterns)


def _compile(pattern: str) -> tuple[re.Pattern[str], bool]:
    only_dirs = pattern.endswith("/")
    body = pattern.rstrip("/")
    anchored = "/" in body
    body = body.lstrip("/")
    out = [] if anchored else ["(?:.*/)?"]
    for token in re.findall(r"\*\*/|/\*\*$|\*+|\?|\[!?[^]]+\]|.", body, re.DOTALL):
        if token == "**/":
            out.append("(?:.*/)?")
        elif token == "/**":
            out.append("/.*")
        elif token[0] == "*":
            out.append("[^/]*")
        elif token == "?":
            out.append("[^/]")
        elif token[0] == "[" and len(token) > 2:
            out.append("[" + ("^" if token[1] == "!" else "") + token[1:-1].lstrip("!").replace("\\", "\\\\") + "]")
        else:
            out.append(re.escape(token))
    return re.compile("".join(out) + r"\Z", re.DOTALL), only_dirs


def walk_context(source: str, dockerignore: str) -> dict[str, str]:
    """List the context of a Dockerfile as members for pack.

    Args:
        source: the directory here.
        dockerignore: the text of a .dockerignore. It is applied here; the file itself stays behind, so that nobody
            applies it again.
    """
    if not os.path.isdir(source):
        raise exception.InvalidError(f"{source} is not a directory")
    ignored = _DockerIgnore(dockerignore)
    members: dict[str, str] = {}
    for directory, subdirectories, files in os.walk(source):
        below = os.path.relpath(directory, source)
        out = [d for d in subdirectories if ignored(_join(below, d))]
        if not ignored.exceptions:
            subdirectories[:] = [d for d in subdirectories if d not in out]
        for entry in [d for d in subdirectories if d not in out] + files:
            name = _join(below, entry)
            if name != ".dockerignore" and not ignored(name):
                members[name] = os.path.join(directory, entry)
    for name in list(members):  # what is in a directory that is left out, and comes along all the same
        while (name := os.path.dirname(name)) and name not in members:
            members[name] = os.path.join(source, name)
    return members


class _DockerIgnore:
    """Patterns as in .dockerignore: all from the root on, the last that matches a path or what is above it counts."""

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            exception_, pattern = pattern.startswith("!"), pattern.removeprefix("!").strip()
            pattern = os.path.normpath(pattern).lstrip("/")
            if pattern not in ("", "."):
                self._rules.append((_compile("/" + pattern)[0], not exception_))
        self.exceptions = any(not leaves_out for _, leaves_out in self._rules)

    def __call__(self, path: str) -> bool:
        parts = path.split("/")
        paths = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        ignored = False
        for regex, leaves_out in self._rules:
            if any(regex.match(p) for p in paths):
                ignored = leaves_out
        return ignored
