"""What a function asks of its containers, checked where the user wrote it."""

from __future__ import annotations

from brisk import exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Optional


def make_spec(
    *,
    env: Optional[Mapping[str, str]],
    allow_networks: Sequence[str],
    user: Optional[str],
    block_network: bool,
    snapshot: bool,
    min_containers: int,
    max_containers: Optional[int],
    **numbers: Optional[float],
) -> dict[str, Any]:
    """Make the API's spec out of @app.function()'s arguments.

    What is None is left out: the server knows the defaults, and the ranges.

    Raises:
        InvalidError: an argument is of the wrong type, negative, or contradicts another.
    """
    counts: dict[str, Optional[float]] = {"min_containers": min_containers, "max_containers": max_containers}
    spec: dict[str, Any] = {}
    for key, value in {**numbers, **counts}.items():
        if value is None:
            continue
        whole = key in ("memory", "pids") or key.endswith("_containers")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise exception.InvalidError(f"{key}={value!r}: want {'a whole number' if whole else 'a number'}")
        may_be_zero = key in ("min_containers", "buffer_containers")
        if not (0 if may_be_zero else 1e-9) <= value < float("inf"):
            raise exception.InvalidError(f"{key}={value!r}: want {'0 or more' if may_be_zero else 'more than 0'}")
        spec[key] = value
    if max_containers is not None and max_containers < min_containers:
        raise exception.InvalidError(f"min_containers={min_containers} is more than max_containers={max_containers}")
    for key, flag in (("block_network", block_network), ("enable_memory_snapshot", snapshot)):
        if not isinstance(flag, bool):
            raise exception.InvalidError(f"{key}={flag!r}: want True or False")
    if isinstance(allow_networks, str):
        raise exception.InvalidError(f"allow_networks={allow_networks!r}: want a list of CIDR prefixes")
    if block_network and allow_networks:
        raise exception.InvalidError("allow_networks with block_network=True contradict each other")
    if user is not None and not isinstance(user, str):
        raise exception.InvalidError(f"user={user!r}: want a string, name or uid[:gid]")
    if allow_networks:
        spec["allow_networks"] = check_networks(allow_networks)
    if env:
        spec["env"] = check_env(env)
    if user:
        spec["user"] = user
    return {**spec, "block_network": block_network, "snapshot": snapshot}


def check_networks(prefixes: Sequence[str]) -> list[str]:
    """The prefixes as the server takes them."""
    import ipaddress

    out = []
    for prefix in prefixes:
        try:
            out.append(str(ipaddress.ip_network(prefix, strict=False)))
        except ValueError:
            raise exception.InvalidError(
                f"allow_networks: {prefix!r} is not a CIDR prefix such as 10.1.0.0/16"
            ) from None
    return out


def check_env(env: Mapping[str, str]) -> dict[str, str]:
    """A copy of the variables, if they can be environment variables."""
    for key, value in env.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise exception.InvalidError(f"env: {key!r}={value!r}: names and values must be strings")
        if not key or "=" in key or "\0" in key or "\0" in value:
            raise exception.InvalidError(f"env: {key!r} is not a usable name, or its value holds a NUL")
        if key.startswith("BRISK_"):
            raise exception.InvalidError(f"env: {key}: names that begin with BRISK_ are Brisk's own")
    return dict(env)
