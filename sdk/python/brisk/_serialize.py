"""Pickles by value: functions and classes travel as code, not as names.

The code of one Python version crashes another, so each such pickle names the version that made it, and loading it
elsewhere is an error that says so. To a reader it is an ordinary pickle.
"""

from __future__ import annotations

import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _ByValue:
    """Pickles as a call of _load."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (sys.version_info[:2], pickle.PickleBuffer(self.data))


def _load(version: tuple[int, int], data: bytes) -> object:
    here = sys.version_info[:2]
    if tuple(version) != here:
        there = ".".join(map(str, version))
        raise RuntimeError(
            f"pickled by value under Python {there}, and this is Python {here[0]}.{here[1]}: functions and classes "
            "that are not in a module, and those with serialized=True, need the same version on both sides"
        )
    return pickle.loads(data)


def dumps(value: object) -> bytes:
    """Pickle by value whatever cannot be imported by name.

    Args:
        value: anything that cloudpickle takes.

    Returns:
        A pickle that the standard library's pickle.loads reads where ``brisk`` can be imported.

    Raises:
        Exception: whatever the pickler raises for what it cannot pickle.
    """
    from brisk._vendor import cloudpickle

    return pickle.dumps(_ByValue(cloudpickle.dumps(value, protocol=5)), protocol=5)
