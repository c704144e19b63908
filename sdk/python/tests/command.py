"""`python3 -m brisk run` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.nodepeer import SDK


@dataclass
class Ended:
    code: int
    out: str
    err: str


class Project:
    """A directory with a user's files, and the command in it."""

    def __init__(self, directory: Path, socket: str) -> None:
        self.directory = directory
        self.socket = socket

    def write(self, name: str, source: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("BRISK_")}
        return {**env, "PYTHONPATH": str(SDK), "PYTHONDONTWRITEBYTECODE": "1", "BRISK_SOCKET": self.socket}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start python3 with these words."""
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=self.environment(),
        )

    def python(self, *words: str) -> Ended:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
            return Ended(process.returncode, out, err)

    def run(self, *words: str) -> Ended:
        """brisk run WORDS"""
        return self.python(str(SDK), "run", *words)
