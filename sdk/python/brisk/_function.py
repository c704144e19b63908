"""Functions that run in containers."""

from __future__ import annotations

import copyreg
import functools
import sys

from brisk import exception

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Generic, NoReturn, TypeVar

    from typing_extensions import ParamSpec

    from brisk._app import App
    from brisk._image import Image

    P = ParamSpec("P")
    R = TypeVar("R", covariant=True)
else:
    from brisk._generic import Generic, P, R


class Function(Generic[P, R]):
    """A function of an app; `@app.function()` makes them.

    Its signature is the plain function's. Attributes beside the methods are copies of the plain function's
    (``__name__``, ``__doc__``, ``__wrapped__``).
    """

    def __init__(
        self, app: App, raw: Callable[P, R], name: str, image: Image, spec: dict[str, Any], serialized: bool
    ) -> None:
        self._app = app
        self._name = name
        self._image = image
        self._spec = spec
        self._serialized = serialized
        self._handle: Any = None  # a brisk._remote.Handle, once the function is known to the server
        self.__brisk_raw__ = raw  # what the runner calls
        functools.update_wrapper(self, raw)

    @property
    def app(self) -> App:
        """The app that the function belongs to."""
        return self._app

    @property
    def name(self) -> str:
        """The function's name, unique in its app."""
        return self._name

    @property
    def image(self) -> Image:
        """The image that its containers run on."""
        return self._image

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in a container and wait for its result.

        What the function prints appears here as it comes. The first call builds the image and uploads the code. An
        interrupt (Ctrl-C) cancels the call.

        Args:
            args, kwargs: the function's own; they must be picklable.

        Returns:
            What the function returns.

        Raises:
            Exception: what the function raised, as itself, with a RemoteTraceback as its ``__cause__``.
            RemoteError: it raised something that cannot be raised here, or its process ended.
            SerializationError: arguments or the result cannot be pickled, or not be read on the other side.
            BuildError: the image could not be built.
            TimeoutError: the call ran for longer than the function's timeout.
            Error: any other of brisk.exception.
        """
        handle = self._handle
        if handle is None:
            from brisk._remote import deploy

            handle = deploy(self)
        return handle.call(args, kwargs)  # type: ignore[no-any-return]

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function in this process.

        Args:
            args, kwargs: the function's own.

        Returns:
            What the function returns.
        """
        return self.__brisk_raw__(*args, **kwargs)

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TypeError(
            f"a Brisk function is not called directly: use {self._name}.remote(...) to run it in a container, "
            f"or {self._name}.local(...) to run it here"
        )

    def __get__(self, instance: object, owner: object = None) -> Function[P, R]:
        if instance is not None:
            raise exception.InvalidError(f"{self._name} is a function of an app, and cannot be used as a method")
        return self

    def __repr__(self) -> str:
        return f"<brisk.Function {self._app.name}.{self._name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if by_name(self):
            return _find, (self.__brisk_raw__.__module__, self.__brisk_raw__.__qualname__)
        return copyreg.__newobj__, (Function,), {**self.__dict__, "_handle": None}  # type: ignore[attr-defined]


def _find(module: str, qualname: str) -> Any:
    __import__(module)
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def by_name(function: Function[Any, Any]) -> bool:
    """Whether a container can find the plain function by importing its module."""
    raw: Any = function.__brisk_raw__
    module = sys.modules.get(raw.__module__)
    if module is None or getattr(module, "__file__", None) is None:
        return False  # an interactive session
    found: Any = module
    for part in raw.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is raw or found is function


def is_function(raw: object) -> bool:
    """Whether raw is a plain function, written with def or lambda."""
    return isinstance(raw, _FunctionType)


_FunctionType: type = type(is_function)
