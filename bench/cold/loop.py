"""The clock of the cold-start benchmark, in the process that a user's program is.

Each line on standard input asks for one call; the answer, one line of JSON, has its milliseconds from `.remote()` to
the value.
"""

import json
import sys
import time


def serve(call):
    """Answer requests until standard input ends; call makes one remote call and returns a JSON value."""
    for _ in sys.stdin:
        start = time.perf_counter()
        value = call()
        ms = (time.perf_counter() - start) * 1000
        print(json.dumps({"ms": ms, "value": value}), flush=True)
