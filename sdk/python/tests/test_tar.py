"""Tars that depend on names and content only."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from brisk import _tar, exception


def fill(root: Path, order: int) -> None:
    files = {"b/two.txt": "2", "a.txt": "1", "b/c/run.sh": "#!", "b/__pycache__/x.pyc": "", "é.txt": "ü"}
    for name in sorted(files, reverse=bool(order)):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[name])
        os.utime(path, (1000 + order, 1000 + order))
    (root / "b/c/run.sh").chmod(0o700 if order else 0o775)
    (root / "a.txt").chmod(0o600 if order else 0o664)
    (root / "link").symlink_to("a.txt")
    (root / "empty").mkdir()


def digest_and_members(members: dict[str, str]) -> tuple[str, list[tarfile.TarInfo], bytes]:
    with _tar.pack(members) as blob:
        blob.file.seek(0)
        data = blob.file.read()
        assert len(data) == blob.size
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            return blob.digest, tar.getmembers(), data


def test_equal_content_has_an_equal_digest(tmp_path: Path) -> None:
    digests = []
    for order in (0, 1):
        root = tmp_path / str(order)
        root.mkdir()
        fill(root, order)
        digest, members, _ = digest_and_members(_tar.walk(str(root), "/srv/x"))
        digests.append(digest)
    assert digests[0] == digests[1]
    assert [(m.name, oct(m.mode), m.uid, m.gid, m.mtime, m.uname) for m in members] == [
        ("srv/x", "0o755", 0, 0, 0, ""),
        ("srv/x/a.txt", "0o644", 0, 0, 0, ""),
        ("srv/x/b", "0o755", 0, 0, 0, ""),
        ("srv/x/b/c", "0o755", 0, 0, 0, ""),
        ("srv/x/b/c/run.sh", "0o755", 0, 0, 0, ""),
        ("srv/x/b/two.txt", "0o644", 0, 0, 0, ""),
        ("srv/x/empty", "0o755", 0, 0, 0, ""),
        ("srv/x/link", "0o777", 0, 0, 0, ""),
        ("srv/x/é.txt", "0o644", 0, 0, 0, ""),
    ]


def test_digest_is_pinned(tmp_path: Path) -> None:
    """Another digest for the same content would build every user's images again."""
    (tmp_path / "a").write_text("content\n")
    digest, _, data = digest_and_members({"etc/a": str(tmp_path / "a")})
    assert len(data) == 10240
    assert digest == "sha256:10116dc06b011eb8327ac575c3d65996631e87c3e653a9c960bb58a158dabb8d"


def test_names_that_are_not_text(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff.bin"
    with open(name, "wb") as file:
        file.write(b"x")
    _, members, _ = digest_and_members(_tar.walk(str(tmp_path), "/d"))
    assert [os.fsencode(m.name) for m in members] == [b"d", b"d/\xff.bin"]


@pytest.mark.parametrize(
    ("pattern", "ignored"),
    [
        ("*.log", ["a.log", "d/b.log", "d/e/c.log"]),
        ("d/", ["d"]),
        ("a.log/", []),
        ("/d/e", ["d/e"]),
        ("d/*.log", ["d/b.log"]),
        ("e", ["d/e"]),
        ("**/e", ["d/e"]),
        ("d/**/c.log", ["d/e/c.log"]),
        ("d/**", ["d/b.log", "d/e"]),
        ("?.log", ["a.log", "d/b.log", "d/e/c.log"]),
        ("[ab].log", ["a.log", "d/b.log"]),
        ("[!ab].log", ["d/e/c.log"]),
        ("a+log", []),
    ],
)
def test_ignore(tmp_path: Path, pattern: str, ignored: list[str]) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    for name in ("a.log", "d/b.log", "d/e/c.log"):
        (tmp_path / name).write_text("")
    everything = {"a.log", "d", "d/b.log", "d/e", "d/e/c.log"}
    left = {name[2:] for name in _tar.walk(str(tmp_path), "/x", [pattern]) if name != "x"}
    gone = {name for name in everything if any(name == i or name.startswith(i + "/") for i in ignored)}
    assert left == everything - gone


def test_unusable_sources(tmp_path: Path) -> None:
    with pytest.raises(exception.InvalidError, match="is not a directory"):
        _tar.walk(str(tmp_path / "none"), "/x")
    with (
        pytest.raises(exception.InvalidError, match=r"cannot read .*/none: No such file"),
        _tar.pack({"x": str(tmp_path / "none")}),
    ):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(exception.InvalidError, match="neither a file"), _tar.pack({"x": str(tmp_path / "pipe")}):
        pass


def test_the_root_as_destination(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    assert list(_tar.walk(str(tmp_path), "/")) == ["f"]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("", "a.txt b b/c b/c/d.txt b/e.pyc k.key"),
        ("# all\n\n*.txt\n", "b b/c b/c/d.txt b/e.pyc k.key"),
        ("**/*.txt\n/k.key\n", "b b/c b/e.pyc"),
        ("b/\n", "a.txt k.key"),
        ("b\n!b/c/d.txt\n", "a.txt b b/c b/c/d.txt k.key"),
        ("*\n!b/c\nb/c/d*\n", "b b/c"),
        ("**\n!a.txt\n", "a.txt"),
        ("b/?.pyc\n./b/../a.txt\n", "b b/c b/c/d.txt k.key"),
    ],
)
def test_context_of_a_dockerfile(tmp_path: Path, patterns: str, names: str) -> None:
    for name in ("a.txt", "b/c/d.txt", "b/e.pyc", "k.key", ".dockerignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert " ".join(sorted(_tar.walk_context(str(tmp_path), patterns))) == names


def test_modes_are_kept_on_request(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "a").chmod(0o640)
    with _tar.pack({"a": str(tmp_path / "a")}, modes=True) as blob:
        blob.file.seek(0)
        with tarfile.open(fileobj=blob.file) as tar:
            assert tar.getmember("a").mode == 0o640


def test_a_context_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(exception.InvalidError, match="is not a directory"):
        _tar.walk_context(str(tmp_path / "none"), "")
