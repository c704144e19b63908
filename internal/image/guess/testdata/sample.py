"""What compiled_test.go expects is the imports below that happen when this is imported."""

import os.path, sys
from . import near, other
from ..above.it import thing as something
from json import dumps

try:
    import tomllib
except ImportError:
    tomllib = None

BIG = {1: 2 ** 100, "a": 1.5, b"x": (1, 2j), "ü": frozenset({"q"}), "…": None, 3: ..., 4: -(1 << 40), 5: True}


class C:
    import inside_a_class


def f(x=1, *, y=2):
    import inside_a_function

    return lambda: (x, y, inside_a_function)
