"""Which side of a call this process is on."""

from __future__ import annotations

import os


def is_local() -> bool:
    """Tell the caller's side from the inside of a container.

    Returns:
        False in a process that Brisk runs a function in, and in its children; True everywhere else.
    """
    return "BRISK_INSTANCE" not in os.environ
