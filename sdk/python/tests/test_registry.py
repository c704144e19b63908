"""Where credentials for registries come from."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from brisk import exception
from brisk._registry import credentials

ADA = {"username": "ada", "password": "engine"}
PAIR = base64.b64encode(b"ada:engine").decode()


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)


def configure(path: Path, config: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))


def test_nothing_is_configured() -> None:
    assert credentials("ghcr.io/org/app:1", None, None) is None


def test_credentials_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "engine")
    assert credentials("ghcr.io/org/app:1", "ada", "TOKEN") == ADA
    monkeypatch.delenv("TOKEN")
    with pytest.raises(exception.InvalidError, match="environment variable TOKEN with the password is not set"):
        credentials("ghcr.io/org/app:1", "ada", "TOKEN")


@pytest.mark.parametrize(
    ("ref", "key", "found"),
    [
        ("ghcr.io/org/app:1", "ghcr.io", True),
        ("ghcr.io/org/app:1", "https://ghcr.io", True),
        ("ghcr.io/org/app:1", "https://ghcr.io/v1/", True),
        ("ghcr.io/org/app@sha256:00", "ghcr.io/org/app", True),
        ("ghcr.io/org/other", "ghcr.io/org/app", False),
        ("ghcr.io/org/app:1", "ghcr.io.example.com", False),
        ("localhost:5000/app:1", "localhost:5000", True),
        ("localhost:5000/app:1", "localhost", False),
        ("python:3.12", "https://index.docker.io/v1/", True),
        ("org/app", "https://index.docker.io/v1/", True),
        ("docker.io/org/app", "https://index.docker.io/v1/", True),
        ("python:3.12", "python", False),
    ],
)
def test_which_entry_is_taken(tmp_path: Path, ref: str, key: str, found: bool) -> None:
    configure(tmp_path / ".docker" / "config.json", {"auths": {key: {"auth": PAIR}}})
    assert credentials(ref, None, None) == (ADA if found else None)


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ({"auth": PAIR}, ADA),
        (ADA, ADA),
        ({"identitytoken": "i", "auth": PAIR}, {**ADA, "identity_token": "i"}),
        ({"registrytoken": "r"}, {"registry_token": "r"}),
        ({}, None),
        ({"auth": "?"}, None),
        ({"auth": 1}, None),
        ("x", None),
    ],
)
def test_what_an_entry_says(tmp_path: Path, entry: Any, found: Any) -> None:
    configure(tmp_path / ".docker" / "config.json", {"auths": {"a.example": entry}})
    assert credentials("a.example/x", None, None) == found


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(username: str) -> dict[str, Any]:
        return {"auths": {"a.example": {"username": username}}}

    run = tmp_path / "run"
    configure(run / "containers" / "auth.json", entry("podman"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run))
    assert credentials("a.example/x", None, None) == {"username": "podman"}
    configure(tmp_path / "auth.json", entry("file"))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    assert credentials("a.example/x", None, None) == {"username": "file"}
    configure(tmp_path / ".docker" / "config.json", entry("home"))
    assert credentials("a.example/x", None, None) == {"username": "home"}
    configure(tmp_path / "docker" / "config.json", entry("docker"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    assert credentials("a.example/x", None, None) == {"username": "docker"}


@pytest.mark.parametrize("content", ["{", "[]", "\0"])
def test_a_file_that_does_not_read(tmp_path: Path, content: str) -> None:
    configure(tmp_path / ".docker" / "config.json", content)
    with pytest.raises(exception.InvalidError, match="cannot read the credentials for registries in "):
        credentials("a.example/x", None, None)


@pytest.mark.parametrize("config", [{"credHelpers": {"a.example": "test"}}, {"credsStore": "test"}])
@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('read key; test "$key" = a.example && echo \'{"Username": "ada", "Secret": "engine"}\'', ADA),
        ('echo \'{"Username": "<token>", "Secret": "t"}\'', {"identity_token": "t"}),
        ("echo credentials not found in native keychain; exit 1", None),
        ("echo the keychain is locked; exit 1", "the keychain is locked"),
        ("echo oops >&2; exit 3", "oops"),
        ("exit 3", "exit status 3"),
        ("echo {", "Expecting property name"),
        ("echo []", "has no attribute"),
    ],
)
def test_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], script: str, found: Any
) -> None:
    configure(tmp_path / ".docker" / "config.json", config)
    program = tmp_path / "docker-credential-test"
    program.write_text(f"#!/bin/sh\ntest $1 = get || exit 9\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if not isinstance(found, str):
        assert credentials("a.example/x", None, None) == found
        return
    with pytest.raises(exception.InvalidError, match=f"a.example from docker-credential-test: .*{found}"):
        credentials("a.example/x", None, None)


def test_a_helper_that_is_not_installed(tmp_path: Path) -> None:
    configure(tmp_path / ".docker" / "config.json", {"credsStore": "nowhere"})
    with pytest.raises(exception.InvalidError, match=r"docker-credential-nowhere: .*No such file"):
        credentials("a.example/x", None, None)
