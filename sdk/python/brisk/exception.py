"""Everything that Brisk raises.

::

    Error
     ├─ InvalidError            the request or an argument is wrong; asking again changes nothing
     │   └─ ExistsError         it is there already, or somebody else holds it
     ├─ NotFoundError           no such image, function, call, instance
     ├─ BuildError              a step of an image failed; carries the step and the end of its output
     ├─ TimeoutError            a deadline passed (also a built-in TimeoutError)
     ├─ CancelledError          the caller went away or asked to stop
     ├─ InterruptedError        the call had begun when its instance or the server died
     ├─ UnavailableError        something that Brisk needs does not answer now; later may work
     │   └─ ConnectionError     the server itself does not answer (also a built-in ConnectionError)
     ├─ ResourceError           a limit of the sandbox was hit: memory, processes
     │   └─ MachineError        the machine lacks something, disk space too; `brisk doctor` says what
     ├─ SerializationError      arguments, a result or a function cannot be pickled, or not read on the other side
     ├─ RemoteError             the function failed, and its own exception cannot be raised here
     └─ ServerError             a fault of Brisk's own
         ├─ InternalError
         └─ CorruptError        bytes are not what their digest or format says

An exception that the user's function raises is raised again on the caller's side as itself, with a RemoteTraceback as
its ``__cause__``; only where its class is unknown here, or it does not survive pickling, is it a RemoteError.

`BY_CLASS` is the one table from the API's error classes to these, `EXIT_CODES` the one from these to exit codes.
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Error(Exception):
    """The base of all of Brisk's exceptions.

    Attributes:
        message: what went wrong, one sentence or fragment.
        hint: what to do about it, a whole sentence; may be empty.
        api_class: the API's name of the class, if the error came from the server; else empty.
    """

    api_class = ""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InvalidError(Error):
    """The request or an argument is wrong."""


class ExistsError(InvalidError):
    """It is there already, or somebody else holds it."""


class NotFoundError(Error):
    """No such image, function, call or instance."""


class BuildError(Error):
    """A step of an image failed.

    Attributes:
        step: the step, in words; empty if the build failed outside of any.
        log: the end of that step's output.
    """

    def __init__(self, message: str = "", *, hint: str = "", step: str = "", log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.log = log


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline of the function's or of Brisk's passed."""


class CancelledError(Error):
    """The caller went away or asked to stop."""


class InterruptedError(Error):
    """The call had begun when its instance or the server died; it may have had effects."""


class UnavailableError(Error):
    """Something that Brisk needs does not answer now; later may work."""


class ConnectionError(UnavailableError, builtins.ConnectionError):
    """The Brisk server does not answer."""


class ResourceError(Error):
    """A limit of the sandbox was hit: memory, processes."""


class MachineError(ResourceError):
    """The machine lacks something, disk space too; `brisk doctor` says what."""


class SerializationError(Error):
    """Arguments, a result or a function cannot be pickled, or cannot be read on the other side."""


class ServerError(Error):
    """A fault of Brisk's own."""


class InternalError(ServerError):
    """The server met a condition that it should not have."""


class CorruptError(ServerError):
    """Bytes are not what their digest or format says."""


class RemoteError(Error):
    """The function failed, and its own exception cannot be raised here.

    Attributes:
        type_name: the class of the remote exception, as ``module.Name``; empty if there was none (the process ended).
        traceback: the remote traceback as text; may be empty.
    """

    def __init__(self, message: str = "", *, hint: str = "", type_name: str = "", traceback: str = "") -> None:
        super().__init__(message, hint=hint)
        self.type_name = type_name
        self.traceback = traceback


class RemoteTraceback(Exception):
    """The ``__cause__`` of an exception that a function raised: the frames inside the container, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n\n" + self.text.rstrip("\n") + "\n"


# From the classes of the API to exceptions.
BY_CLASS: Mapping[str, type[Error]] = {
    "invalid": InvalidError,
    "not_found": NotFoundError,
    "exists": ExistsError,
    "unavailable": UnavailableError,
    "corrupt": CorruptError,
    "timeout": TimeoutError,
    "cancelled": CancelledError,
    "disk_full": MachineError,
    "exhausted": ResourceError,
    "machine": MachineError,
    "build_failed": BuildError,
    "user_code": RemoteError,
    "interrupted": InterruptedError,
    "internal": InternalError,
}

# From exceptions to the exit code of `brisk run`: the first class in this order that fits.
EXIT_CODES: tuple[tuple[type[Error], int], ...] = (
    (InvalidError, 2),
    (NotFoundError, 3),
    (TimeoutError, 4),
    (CancelledError, 4),
    (BuildError, 5),
    (MachineError, 6),
    (UnavailableError, 7),
    (ServerError, 70),
    (InterruptedError, 70),
    (Error, 1),
)


def from_api(error: Mapping[str, Any]) -> Error:
    """Make the exception for an error of the API.

    Args:
        error: ``{class, message, hint}``.

    Returns:
        The exception; a class that this SDK does not know is an InternalError.
    """
    name = str(error.get("class"))
    exc = BY_CLASS.get(name, InternalError)(str(error.get("message") or ""), hint=str(error.get("hint") or ""))
    exc.api_class = name
    return exc


def exit_code(exc: BaseException) -> int:
    """The exit code that `brisk run` ends with when this exception is uncaught: 1 for any that is not Brisk's."""
    for kind, code in EXIT_CODES:
        if isinstance(exc, kind):
            return code
    return 1
