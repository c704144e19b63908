"""Apps: named sets of functions, and the entry points that use them."""

from __future__ import annotations

import functools
import re

from brisk import exception
from brisk._function import Function, is_function
from brisk._image import Image
from brisk._spec import make_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Optional, TypeVar

    from typing_extensions import ParamSpec

    P = ParamSpec("P")
    R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


class App:
    """A named set of functions.

    ::

        app = brisk.App("stats")
    """

    def __init__(self, name: str) -> None:
        """Make an app; nothing is sent anywhere.

        Args:
            name: 1 to 128 letters, digits, "_", "-" and ".".

        Raises:
            InvalidError: it is not such a name.
        """
        _check_name("app", name)
        self._name = name
        self._functions: dict[str, Function[Any, Any]] = {}
        self._entrypoints: dict[str, LocalEntrypoint] = {}

    @property
    def name(self) -> str:
        """The app's name."""
        return self._name

    @property
    def functions(self) -> Mapping[str, Function[Any, Any]]:
        """Its functions by name."""
        return dict(self._functions)

    @property
    def entrypoints(self) -> Mapping[str, LocalEntrypoint]:
        """Its local entry points by name."""
        return dict(self._entrypoints)

    def function(
        self,
        *,
        image: Optional[Image] = None,
        cpu: Optional[float] = None,
        memory: Optional[int] = None,
        pids: Optional[int] = None,
        timeout: float = 300,
        startup_timeout: Optional[float] = None,
        scaledown_window: Optional[float] = None,
        min_containers: int = 0,
        max_containers: Optional[int] = None,
        buffer_containers: int = 0,
        env: Optional[Mapping[str, str]] = None,
        block_network: bool = False,
        allow_networks: Sequence[str] = (),
        user: Optional[str] = None,
        enable_memory_snapshot: bool = True,
        serialized: bool = False,
        name: Optional[str] = None,
    ) -> Callable[[Callable[P, R]], Function[P, R]]:
        """Make a function of the app out of a plain one.

        Args:
            image: what its containers run on; default Image.debian_slim().
            cpu: cores, at most; default 1.
            memory: MiB, at most; a function that needs more is killed. Default 2048.
            pids: processes and threads, at most; default 512.
            timeout: seconds that a call may run.
            startup_timeout: seconds that a container may take to start, the import of the module included;
                default 300.
            scaledown_window: seconds that a container stays without calls; default 60.
            min_containers: containers that are kept, even without calls.
            max_containers: containers at most; default 8. More calls wait.
            buffer_containers: idle containers kept ready beside the busy ones.
            env: environment variables; they are no secrets: the function's definition holds them.
            block_network: no network at all.
            allow_networks: private networks that may be reached beside the public internet, as CIDR prefixes.
            user: that the function runs as, as name or uid[:gid]; default the image's.
            enable_memory_snapshot: start later containers from a snapshot taken after the import of the module.
            serialized: send the function by value instead of its module by name; needs the same minor version of
                Python in the image. Closures, lambdas and functions of interactive sessions always go that way.
            name: in the app; default the plain function's.

        Returns:
            A decorator.

        Raises:
            InvalidError: an argument is out of range, or the app has a function of that name already.
        """
        spec = make_spec(
            cpu=cpu,
            memory=memory,
            pids=pids,
            timeout=timeout,
            startup_timeout=startup_timeout,
            scaledown_window=scaledown_window,
            min_containers=min_containers,
            max_containers=max_containers,
            buffer_containers=buffer_containers,
            env=env,
            block_network=block_network,
            allow_networks=allow_networks,
            user=user,
            snapshot=enable_memory_snapshot,
        )
        if image is None:
            image = Image.debian_slim()
        elif not isinstance(image, Image):
            raise exception.InvalidError(f"image={image!r}: want a brisk.Image")
        chosen = image

        def decorate(raw: Callable[P, R]) -> Function[P, R]:
            if isinstance(raw, Function) or not is_function(raw):
                raise exception.InvalidError(f"@app.function() takes a plain function, not {raw!r}")
            own = name or raw.__name__.replace("<lambda>", "lambda")
            _check_name("function", own)
            before = self._functions.get(own)
            # The same line of code again is a module that is being reloaded, or a loop: the last one stands.
            if before is not None and _place(before.__brisk_raw__) != _place(raw):
                raise exception.InvalidError(
                    f"app {self._name} has two functions named {own}", hint="Give one of them another with name=."
                )
            function = Function(self, raw, own, chosen, spec, serialized)
            self._functions[own] = function
            return function

        return decorate

    def local_entrypoint(self, *, name: Optional[str] = None) -> Callable[[Callable[P, R]], LocalEntrypoint]:
        """Make a plain function what `brisk run FILE` runs, in the process of the command.

        Its parameters are the command's options, by their annotations.

        Args:
            name: for FILE::NAME; default the function's.

        Returns:
            A decorator.
        """

        def decorate(raw: Callable[P, R]) -> LocalEntrypoint:
            if not is_function(raw):
                raise exception.InvalidError(f"@app.local_entrypoint() takes a plain function, not {raw!r}")
            entrypoint = LocalEntrypoint(raw, name or raw.__name__)
            self._entrypoints[entrypoint.name] = entrypoint
            return entrypoint

        return decorate

    def __repr__(self) -> str:
        return f"<brisk.App {self._name}>"


class LocalEntrypoint:
    """A function that runs where `brisk run` runs. Calling it is calling the plain function."""

    def __init__(self, raw: Callable[..., Any], name: str) -> None:
        self._raw = raw
        self._name = name
        functools.update_wrapper(self, raw)

    @property
    def name(self) -> str:
        """What FILE::NAME calls it."""
        return self._name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._raw(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<brisk.LocalEntrypoint {self._name}>"


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise exception.InvalidError(
            f"{what} name {name!r}: want 1 to 128 letters, digits, '_', '-', '.', not beginning with '-' or '.'"
        )


def _place(raw: Any) -> tuple[str, str]:
    return raw.__module__, raw.__qualname__
