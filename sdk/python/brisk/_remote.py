"""The caller's side of a call: making a function known to the server, then calling it."""

from __future__ import annotations

import io
import json
import pickle
import sys
import threading
from typing import Any, Optional

from brisk import _code, _recipe, _serialize, _tar, exception
from brisk._client import BuildObserver, Client, Raised, default_client
from brisk._context import is_local
from brisk._function import Function, by_name
from brisk._output import Relay, build_observer

MAX_PAYLOAD = 1 << 30  # bytes, as the runner's

_lock = threading.RLock()
_images: dict[tuple[Client, str], str] = {}  # digests of what has been built, by definition
_relay: Optional[Relay] = None


def use_relay(relay: Relay) -> None:
    """Decide where what functions print goes; without this, to this process's own output."""
    global _relay
    _relay = relay


def deploy(function: Function[Any, Any]) -> Handle:
    """Build the function's image, upload its code and register it, once in a process.

    Raises:
        exception.Error: any of it failed.
    """
    global _relay
    if not is_local():
        raise exception.InvalidError(
            f"{function.name}.remote(): functions cannot be called from inside containers yet",
            hint=f"Use {function.name}.local(...) there.",
        )
    with _lock:
        if function._handle is None:
            if _relay is None:
                _relay = Relay()
            client = default_client()
            image = _build(client, function)
            function._handle = Handle(client, function, _register(client, function, image), _relay)
        handle: Handle = function._handle
        return handle


def _build(client: Client, function: Function[Any, Any]) -> str:
    definition = _recipe.resolve(function.image, client)
    key = client, json.dumps(definition, sort_keys=True)
    if key not in _images:
        observer: BuildObserver
        with build_observer() as observer:
            _images[key] = client.build_image(definition, observer)
    return _images[key]


def _register(client: Client, function: Function[Any, Any], image: str) -> str:
    raw = function.__brisk_raw__
    serialized = function._serialized or not by_name(function)
    module = sys.modules.get(raw.__module__)
    definition: dict[str, Any] = {
        "app": function.app.name,
        "name": function.name,
        "module": "",
        "qualname": raw.__qualname__,
        "serialized": serialized,
        "image": image,
        "spec": function._spec,
    }
    members = {} if module is None else _code.collect(module, function.image._sources)
    with _tar.pack(members) as code:
        client.put_blob(code.digest, code.file, code.size)
        definition["code"] = code.digest
    if serialized:
        try:
            pickled = _tar.seal(io.BytesIO(_serialize.dumps(raw)))
        except Exception as exc:
            raise exception.SerializationError(
                f"{function.name} cannot be sent by value: {type(exc).__name__}: {exc}",
                hint="It must not hold on to open files, locks or connections; module-level functions of a file "
                "are sent by name and have no such limits.",
            ) from exc
        client.put_blob(pickled.digest, pickled.file, pickled.size)
        definition["pickle"] = pickled.digest
    else:
        assert module is not None  # by_name found it
        definition["module"] = _code.module_name(module)
        # What the function returns names its classes by the script's module: they are the ones of __main__ here.
        sys.modules.setdefault(definition["module"], module)
    return client.create_function(definition)


class Handle:
    """A function that the server knows. Safe for use by many threads."""

    def __init__(self, client: Client, function: Function[Any, Any], digest: str, relay: Relay) -> None:
        self._client = client
        self._app = function.app.name
        self._name = function.name
        self._by_value = function._serialized or not by_name(function)
        self._digest = digest
        self._relay = relay

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call and wait; see Function.remote."""
        payload = self._pickle((args, kwargs))
        outcome = self._client.call(self._digest, self._app, payload, self._relay.write)
        if isinstance(outcome, Raised):
            raise self._exception(outcome)
        try:
            return pickle.loads(outcome.payload)
        except Exception as exc:
            raise exception.SerializationError(
                f"{self._name} returned what cannot be unpickled here: {type(exc).__name__}: {exc}",
                hint="The classes of a result must be importable on both sides.",
            ) from exc

    def _pickle(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> bytes:
        data = None
        try:
            if not self._by_value:
                try:
                    data = pickle.dumps(arguments, protocol=5)
                except Exception:
                    pass  # a lambda, say: by value it may do
            if data is None:
                data = _serialize.dumps(arguments)
        except Exception as exc:
            raise exception.SerializationError(
                f"the arguments of {self._name} cannot be pickled: {type(exc).__name__}: {exc}",
                hint="Pass plain data: no open files, locks, generators or connections.",
            ) from exc
        if len(data) > MAX_PAYLOAD:
            raise exception.SerializationError(
                f"the arguments of {self._name} have {len(data)} bytes when pickled; at most {MAX_PAYLOAD} can be sent"
            )
        return data

    def _exception(self, raised: Raised) -> BaseException:
        """What to raise for a call that ended with an exception."""
        error = raised.error
        kind, message, text = error.get("kind", ""), error.get("message", ""), error.get("traceback", "")
        module, name = error.get("module", ""), error.get("type", "")
        full = name if module in ("", "builtins") else f"{module}.{name}"
        result: exception.Error
        if kind == "not_found":
            result = exception.NotFoundError(message)
        elif kind == "unpickle":
            result = exception.SerializationError(
                f"{self._name} or its arguments cannot be read in the container: {full}: {message}",
                hint="The classes and modules that they need must be in the image, or travel with the code.",
            )
        elif kind == "pickle":
            result = exception.SerializationError(
                message if message.startswith("the result") else f"{self._name}: {full}: {message}",
                hint="Return plain data: no open files, locks, generators or connections.",
            )
        elif kind == "import":
            hint = ""
            if name == "ModuleNotFoundError":
                hint = (
                    "If it is a package, add it to the image: .pip_install(...) or .apt_install(...). If it is your "
                    "own module, import it at the top of the entry file, or use .add_local_python_source(...)."
                )
            result = exception.RemoteError(
                f"the module of {self._name} cannot be imported in the container: {full}: {message}",
                hint=hint,
                type_name=full,
                traceback=text,
            )
        else:
            own = _unpickle_exception(raised.payload)
            if own is not None:
                own.__cause__ = exception.RemoteTraceback(text)
                return own
            result = exception.RemoteError(f"{full}: {message}", type_name=full, traceback=text)
        if text:
            result.__cause__ = exception.RemoteTraceback(text)
        return result


def _unpickle_exception(payload: bytearray) -> Optional[Exception]:
    """The function's own exception; None if it cannot be one here.

    Not one that would end this process or look like its user's Ctrl-C (SystemExit, KeyboardInterrupt) either.
    """
    if not payload:
        return None
    try:
        exc = pickle.loads(payload)
    except Exception:
        return None
    return exc if isinstance(exc, Exception) else None
