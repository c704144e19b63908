"""A Brisk server in this process: the HTTP API over a unix socket, without images, sandboxes or a disk.

Calls run in the real runner, as a process of this machine's Python on the code that was uploaded, so that a test with
this server covers the SDK from `.remote()` to the user's function and back. Any route's answer can be replaced, to
play failures.
"""

from tests.fakeserver.server import FakeServer, Reply, frame

__all__ = ["FakeServer", "Reply", "frame"]
