"""Credentials for registries of container images, found where docker, podman and buildah keep them."""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any, Optional

from brisk import exception

_HUB = "https://index.docker.io/v1/"  # what docker calls its own registry in its configuration


def credentials(ref: str, username: Optional[str], password_env: Optional[str]) -> Optional[dict[str, str]]:
    """Find the credentials for an image.

    Args:
        ref: of the image.
        username: if the user has named credentials; else those of docker's configuration are looked for.
        password_env: with it, the name of the environment variable that holds the password.

    Returns:
        As the API takes them; None if there are none.

    Raises:
        exception.InvalidError: the variable is not set, or the configuration or a helper that it names is unusable.
    """
    if username is not None and password_env is not None:
        password = os.environ.get(password_env)
        if not password:
            raise exception.InvalidError(
                f"from_registry({ref!r}): the environment variable {password_env} with the password is not set",
                hint="Set it where the image is built from; after a docker login, username and password_env can go.",
            )
        return {"username": username, "password": password}
    config = _read_config()
    if not config:
        return None
    host, _, rest = ref.partition("/")
    if not rest or not ("." in host or ":" in host or host == "localhost") or host in ("docker.io", "index.docker.io"):
        keys = [_HUB]
    else:
        keys = [f"{host}/{rest.partition('@')[0].partition(':')[0]}", host]
    for key in keys:
        found = _lookup(config, key)
        if found:
            return found
    return None


def _read_config() -> dict[str, Any]:
    candidates = [os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "config.json")]
    candidates.append(os.environ.get("REGISTRY_AUTH_FILE", ""))
    if os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(os.path.join(os.environ["XDG_RUNTIME_DIR"], "containers", "auth.json"))
    path = next((path for path in candidates if path and os.path.isfile(path)), None)
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        if not isinstance(config, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as exc:
        raise exception.InvalidError(
            f"cannot read the credentials for registries in {path}: {exc}", hint="Mend the file, or log in again."
        ) from None
    return config


def _lookup(config: dict[str, Any], key: str) -> Optional[dict[str, str]]:
    helper = _part(config, "credHelpers").get(key)
    if not helper and (key == _HUB or "/" not in key):  # a store knows hosts, not repositories
        helper = config.get("credsStore")
    if helper:
        found = _ask(str(helper), key)
        if found:
            return found
    entries = _part(config, "auths")
    entry = entries.get(key) or next((entries[name] for name in entries if _hostname(name) == key), None)
    return _decode(entry) if isinstance(entry, dict) else None


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _hostname(key: str) -> str:
    """The host of a key, which some tools write as a URL."""
    return key.partition("://")[2].partition("/")[0] if "://" in key else key.rstrip("/")


def _decode(entry: dict[str, Any]) -> Optional[dict[str, str]]:
    found = {
        "username": entry.get("username"),
        "password": entry.get("password"),
        "identity_token": entry.get("identitytoken"),
        "registry_token": entry.get("registrytoken"),
    }
    try:
        pair = base64.b64decode(entry.get("auth") or "").decode()
    except (binascii.Error, TypeError, ValueError):
        pair = ""
    if ":" in pair:
        found["username"], _, found["password"] = pair.rstrip("\0").partition(":")
    return {name: value for name, value in found.items() if isinstance(value, str) and value} or None


def _ask(helper: str, key: str) -> Optional[dict[str, str]]:
    """Ask a credential helper, a program beside docker."""
    import subprocess

    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run([program, "get"], input=key, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            found = json.loads(done.stdout)
            username, secret = str(found.get("Username", "")), str(found.get("Secret", ""))
            if username == "<token>":
                return {"identity_token": secret}
            return {"username": username, "password": secret} if username or secret else None
        reason = (done.stdout.strip() or done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        if "credentials not found" in reason:
            return None
    except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired) as exc:
        reason = str(exc)
    raise exception.InvalidError(
        f"cannot get the credentials for {key} from {program}: {reason}",
        hint="Look at docker's configuration, which names the helper, or log in again.",
    )
