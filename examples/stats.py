"""A function that needs a package: `brisk run examples/stats.py -- --values 1 --values 2.5`.

The import of numpy is at the top of the module: it happens once, before the snapshot that later containers start from.
"""

from typing import List

import brisk

app = brisk.App("stats")
image = brisk.Image.debian_slim().pip_install("numpy")

with image.imports():
    import numpy as np


@app.function(image=image)
def mean(values: List[float]) -> float:
    return float(np.mean(values))


@app.local_entrypoint()
def main(values: List[float] = [3, 1, 4, 1, 5, 9]) -> None:  # noqa: B006
    print(f"The mean of {values} is {mean.remote(values):g}")
