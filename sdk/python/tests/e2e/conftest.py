"""A real server for the tests of this directory, and `brisk run` against it. They need root and a built brisk."""

from __future__ import annotations

import os
import subprocess
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import Ended


class Site:
    """A server with a data directory of its own, in which images stay built from test to test."""

    def __init__(self, data: Path) -> None:
        binary = os.environ.get("BRISK_BIN")
        if not binary:
            pytest.fail("BRISK_BIN is not set: it names the brisk to test")
        self.binary = os.path.abspath(binary)
        if seed := os.environ.get("BRISK_E2E_SEED"):  # see scripts/e2e-seed.sh
            subprocess.run(["cp", "-a", "--reflink=auto", "--sparse=always", seed, data], check=True)
        self.data = data
        self.log: list[str] = []
        self._ready = threading.Event()
        self.server = subprocess.Popen(
            [self.binary, "--data", str(data), "up"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait(120)
        if self.server.poll() is not None or not self._ready.is_set():
            self.close()
            pytest.fail("the server did not start:\n" + "".join(self.log))

    def _read(self) -> None:
        assert self.server.stdout is not None
        for line in self.server.stdout:
            self.log.append(line)
            if "ready" in line:
                self._ready.set()
        self._ready.set()

    def start(self, directory: Path, *words: str) -> subprocess.Popen[bytes]:
        """Start brisk with these words in a directory."""
        return subprocess.Popen(
            [self.binary, "--data", str(self.data), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
        )

    def close(self) -> None:
        if self.server.poll() is None:
            self.server.terminate()
        try:
            self.server.wait(60)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self._reader.join()
        assert self.server.stdout is not None
        self.server.stdout.close()


class Files:
    """A directory of a user's files."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site = site
        self.directory = directory

    def write(self, name: str, source: str) -> None:
        (self.directory / name).write_text(textwrap.dedent(source))

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return self.site.start(self.directory, "run", *words)

    def run(self, *words: str) -> Ended:
        """brisk run WORDS"""
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=900)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Ended(process.returncode, out.decode(), err.decode())


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("brisk") / "data")
    yield site
    site.close()


@pytest.fixture
def files(site: Site, tmp_path: Path) -> Files:
    return Files(site, tmp_path)
