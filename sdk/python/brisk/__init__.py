"""Brisk: run Python functions in containers that start in well under a second.

::

    import brisk

    app = brisk.App("stats")
    image = brisk.Image.debian_slim().pip_install("numpy")

    @app.function(image=image)
    def mean(values: list[float]) -> float:
        import numpy
        return float(numpy.mean(values))

    @app.local_entrypoint()
    def main() -> None:
        print(mean.remote([1, 2, 3]))

``brisk run stats.py`` runs main here and mean in a container.

The exceptions are drawn in brisk.exception, and are members of this package too. Every other module whose name begins
with an underscore is private.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from brisk import exception as exception
    from brisk._app import App, LocalEntrypoint
    from brisk._context import is_local
    from brisk._function import Function
    from brisk._image import Image
    from brisk.exception import (
        BuildError,
        CancelledError,
        ConnectionError,
        CorruptError,
        Error,
        ExistsError,
        InternalError,
        InterruptedError,
        InvalidError,
        MachineError,
        NotFoundError,
        RemoteError,
        RemoteTraceback,
        ResourceError,
        SerializationError,
        ServerError,
        TimeoutError,
        UnavailableError,
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "BuildError",
    "CancelledError",
    "ConnectionError",
    "CorruptError",
    "Error",
    "ExistsError",
    "Function",
    "Image",
    "InternalError",
    "InterruptedError",
    "InvalidError",
    "LocalEntrypoint",
    "MachineError",
    "NotFoundError",
    "RemoteError",
    "RemoteTraceback",
    "ResourceError",
    "SerializationError",
    "ServerError",
    "TimeoutError",
    "UnavailableError",
    "exception",
    "is_local",
]

# Members are imported when they are first used: the runner inside a container imports this package too, and should
# not pay for what the user's code does not touch.
_HOMES = {
    "App": "brisk._app",
    "LocalEntrypoint": "brisk._app",
    "Function": "brisk._function",
    "Image": "brisk._image",
    "is_local": "brisk._context",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'brisk' has no attribute {name!r}")
    from importlib import import_module

    if name == "exception":
        return import_module("brisk.exception")
    value = getattr(import_module(_HOMES.get(name, "brisk.exception")), name)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted([*__all__, "__version__"])
