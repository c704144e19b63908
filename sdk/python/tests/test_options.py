"""Signatures as command-line options."""

from __future__ import annotations

from typing import Any, Callable, List, Literal, Optional, Sequence, Tuple

import pytest

from brisk import _options, exception


def parse(function: Callable[..., Any], *words: str) -> dict[str, Any]:
    return _options.parse(function, words, "prog")


def everything(
    count: int,
    ratio: float = 0.5,
    label: str = "x",
    fast: bool = False,
    slow: bool = True,
    maybe: Optional[int] = None,
    numbers: List[int] = [],  # noqa: B006
    words: Sequence[str] = (),
    pair: Tuple[float, ...] = (),
    mode: Literal["a", "b"] = "a",
    level: Literal[1, 2] = 1,
    modes: list[Literal["u", "v"]] = [],  # noqa: B006
) -> None:
    """Does everything."""


def test_types() -> None:
    assert parse(everything, "--count", "3") == {"count": 3}
    assert parse(
        everything,
        *["--count=-3", "--ratio", "1e3", "--label", "", "--fast", "--no-slow", "--maybe", "4"],
        *["--numbers", "1", "--numbers=2", "--words", "a b", "--pair", "1", "--pair", "2"],
        *["--mode", "b", "--level", "2", "--modes", "v"],
    ) == {
        "count": -3,
        "ratio": 1000.0,
        "label": "",
        "fast": True,
        "slow": False,
        "maybe": 4,
        "numbers": [1, 2],
        "words": ["a b"],
        "pair": (1.0, 2.0),
        "mode": "b",
        "level": 2,
        "modes": ["v"],
    }


def unannotated(a, b=2, c=1.5, d=False, e="s", f=None, g={}):  # type: ignore[no-untyped-def]  # noqa: B006
    return a, b, c, d, e, f, g


def test_without_annotations_defaults_decide() -> None:
    words = ["--a", "1", "--b", "3", "--c", "2", "--d", "--e", "5", "--f", "6"]
    assert parse(unannotated, *words) == {"a": "1", "b": 3, "c": 2.0, "d": True, "e": "5", "f": "6"}
    assert parse(unannotated, "--a", "[1, 2.5]") == {"a": [1, 2.5]}
    assert parse(unannotated, "--a", "[1, 2.5") == {"a": "[1, 2.5"}


def new_style(a: int | None = None, b: str | None = None, window_days: int = 1, *rest: int, **more: int) -> None:
    pass


def test_new_style_unions_and_underscores() -> None:
    """On 3.9 too, where int | None cannot be evaluated."""
    assert parse(new_style, "--a", "1", "--b", "2", "--window-days", "3") == {"a": 1, "b": "2", "window_days": 3}
    assert parse(new_style, "--window_days", "3") == {"window_days": 3}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the following arguments are required: --count"),
        (["--count", "x"], "argument --count: invalid int value: 'x'"),
        (["--count", "1", "--cou", "2"], "unrecognized arguments: --cou 2"),
        (["--count", "1", "stray"], "unrecognized arguments: stray"),
        (["--count", "1", "--mode", "c"], "argument --mode: 'c': want one of a, b"),
        (["--count", "1", "--level", "3"], "argument --level: '3': want one of 1, 2"),
    ],
)
def test_wrong_options(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(everything, *words)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: prog [-h]")
    assert complaint in err


def test_lists_as_json() -> None:
    words = ["--count", "1", "--numbers", "[1, 2]", "--numbers", "3", "--pair", "[1, 2.5]", "--words", "[1]"]
    assert parse(everything, *words) == {"count": 1, "numbers": [1, 2, 3], "pair": (1.0, 2.5), "words": ["[1]"]}
    for wrong in ("[1, 2.5]", "[1", '["1"]', "[true]"):
        with pytest.raises(SystemExit):
            parse(everything, "--count", "1", "--numbers", wrong)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(everything, "--help")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Does everything." in text
    assert "--count INT required" in text
    assert "--ratio FLOAT default: 0.5" in text
    assert "--fast, --no-fast default: False" in text
    assert "--mode {a,b} default: 'a'" in text
    assert "--numbers INT default: []; may be repeated" in text


def test_percent_in_a_default(capsys: pytest.CaptureFixture[str]) -> None:
    def f(pattern: str = "100%s") -> None: ...

    with pytest.raises(SystemExit):
        parse(f, "--help")
    assert "default: '100%s'" in capsys.readouterr().out


def test_what_cannot_be_an_option() -> None:
    def required(data: dict[str, int]) -> None: ...

    def optional(n: int = 1, data: Optional[dict[str, int]] = None) -> None: ...

    with pytest.raises(exception.InvalidError, match="'data' cannot be given on the command line"):
        parse(required)
    assert parse(optional, "--n", "2") == {"n": 2}


def test_a_parameter_may_be_named_help() -> None:
    def f(help: str = "") -> None: ...

    assert parse(f, "--help", "me") == {"help": "me"}
