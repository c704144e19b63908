from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest

from tests.command import Project
from tests.fakeserver import FakeServer
from tests.nodepeer import Peer

StartRunner = Callable[..., Peer]


@pytest.fixture
def start_runner(tmp_path: Path) -> Iterator[StartRunner]:
    """Start a runner whose code directory holds one module, m, of the given source; it has said hello."""
    peers: list[Peer] = []

    def start(source: str = "", function: str = "", **settings: object) -> Peer:
        code = tmp_path / "code"
        code.mkdir(exist_ok=True)
        (code / "m.py").write_text(source)
        peer = Peer(tmp_path, code, **settings)  # type: ignore[arg-type]
        peers.append(peer)
        hello = peer.accept()
        assert hello == {
            "type": "hello",
            "generation": "1",
            "phase": "start",
            "pid": peer.process.pid,
            "python": ".".join(map(str, sys.version_info[:3])),
        }
        if function:
            answer = peer.load("m", function)
            assert answer["type"] == "loaded", answer
        return peer

    yield start
    for peer in peers:
        peer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path) as fake:
        yield fake


@pytest.fixture
def project(tmp_path: Path, server: FakeServer) -> Project:
    directory = tmp_path / "project"
    directory.mkdir()
    return Project(directory, server.socket)
