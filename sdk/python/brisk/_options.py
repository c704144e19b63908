"""Command-line options out of a function's signature.

int, float, str, bool (--flag and --no-flag), Literal (choices), Optional of these, and lists of them: the option
repeated, or once with a JSON list of numbers. A parameter without an annotation is of its default's type, else a
string, or what a JSON list or object says. One with a default of any other type keeps it, and has no option.
"""

from __future__ import annotations

import argparse
import collections.abc
import inspect
import itertools
import json
import typing
from collections.abc import Sequence
from typing import Any, Callable, Literal, Optional, Union

from brisk import exception

_SCALARS = (int, float, str, bool)
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)


class _Option:
    """How one parameter is read: by convert, from one word or many."""

    def __init__(
        self, convert: Callable[[str], Any], choices: Optional[Sequence[Any]] = None, many: Optional[type] = None
    ) -> None:
        self.convert = convert
        self.choices = choices
        self.many = many


def parse(function: Callable[..., Any], arguments: Sequence[str], program: str) -> dict[str, Any]:
    """Read options for a function.

    Args:
        function: its signature says which options there are, its docstring what it does.
        arguments: the words of the command line.
        program: what usage and help call the command.

    Returns:
        Keyword arguments.

    Raises:
        SystemExit: with 2 after a usage message on standard error for wrong options, with 0 after --help.
        exception.InvalidError: a parameter without a default cannot be an option.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description=inspect.getdoc(function),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        conflict_handler="resolve",
    )
    lists: dict[str, type] = {}
    hints = _hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        required = parameter.default is parameter.empty
        option = _option(hints.get(parameter.name, parameter.empty), parameter.default)
        if option is None or parameter.kind is parameter.POSITIONAL_ONLY:
            if required:
                raise exception.InvalidError(
                    f"{program}: parameter {parameter.name!r} cannot be given on the command line",
                    hint="Annotate it with int, float, str, bool, a Literal, or a list of these; or give it a default.",
                )
            continue
        if option.many is not None:
            lists[parameter.name] = option.many
        _add(parser, parameter, option, required)
    values = vars(parser.parse_args(arguments))
    for name, kind in lists.items():
        if name in values:
            values[name] = kind(itertools.chain.from_iterable(values[name]))
    return values


def _add(parser: argparse.ArgumentParser, parameter: inspect.Parameter, option: _Option, required: bool) -> None:
    flags = ["--" + parameter.name.replace("_", "-")]
    if "_" in parameter.name:
        flags.append("--" + parameter.name)
    settings: dict[str, Any] = {
        "dest": parameter.name,
        "required": required,
        "default": argparse.SUPPRESS,  # absent: the function's own default
    }
    convert = _read_bool if option.convert is bool else option.convert
    shown = "required" if required else f"default: {parameter.default!r}"
    if option.convert is bool and option.many is None:
        # 3.9 to 3.12 show these with the default that is suppressed, unless there is some help text.
        parser.add_argument(*flags, action=argparse.BooleanOptionalAction, help=shown, **settings)
        return
    if option.many is not None:
        settings["action"] = "append"
        shown += "; may be repeated"
        convert = _reader_of_lists(option.convert, convert)
    if option.choices is not None:
        settings["metavar"] = "{" + ",".join(map(str, option.choices)) + "}"
    else:
        settings["metavar"] = option.convert.__name__.upper()
    parser.add_argument(*flags, type=convert, help=shown.replace("%", "%%"), **settings)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that exists for type checkers only, or `int | None` before Python 3.10
        return {
            name: _from_text(p.annotation) if isinstance(p.annotation, str) else p.annotation
            for name, p in inspect.signature(function).parameters.items()
        }


def _from_text(annotation: str) -> Any:
    """An annotation that could not be evaluated: the plain ones are still known."""
    parts = [part.strip() for part in annotation.split("|")]
    plain = {"int": int, "float": float, "str": str, "bool": bool, "None": type(None)}
    if all(part in plain for part in parts):
        return Union[tuple(plain[part] for part in parts)]
    return object


def value(word: str) -> Any:
    """What a word means for a parameter that does not say: a JSON list or object, else a string."""
    if word[:1] in ("[", "{"):
        try:
            return json.loads(word)
        except ValueError:
            pass
    return word


def _option(hint: Any, default: Any) -> Optional[_Option]:
    empty = inspect.Parameter.empty
    if hint is empty or hint is Any:
        if default is empty or default is None:
            return _Option(value)
        return _Option(type(default)) if type(default) in _SCALARS else None
    if hint in _SCALARS:
        return _Option(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return _Option(_chooser(args), choices=args)
    if origin is Union or type(hint).__name__ == "UnionType":
        rest = [arg for arg in args if arg is not type(None)]
        return _option(rest[0], default) if len(rest) == 1 else None
    if origin in _LISTS or hint in _LISTS:
        element = args[0] if args else str
        inner = _option(element, empty)
        if inner is None or inner.many is not None:
            return None
        if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
            return None
        return _Option(inner.convert, inner.choices, tuple if origin is tuple or hint is tuple else list)
    return None


def _chooser(choices: Sequence[Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        for choice in choices:
            if str(choice) == text:
                return choice
        raise argparse.ArgumentTypeError(f"{text!r}: want one of {', '.join(map(str, choices))}")

    return value


def _reader_of_lists(kind: Callable[[str], Any], convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Reads one word as the elements that it stands for."""

    def values(text: str) -> list[Any]:
        if kind not in (int, float) or not text.startswith("["):
            return [convert(text)]
        found = json.loads(text)  # a ValueError, as float's
        if not all(type(value) in (int, kind) for value in found):
            raise ValueError
        return [kind(value) for value in found]

    values.__name__ = kind.__name__  # argparse says "invalid int value"
    return values


def _read_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        return words[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text!r}: want true or false") from None
