"""A function that needs a package: `brisk run examples/stats.py --n 20`.

The import of numpy is at the top of the module: it happens once, before the snapshot that later containers start from.
"""

from typing import List

import brisk

app = brisk.App("stats")
image = brisk.Image.debian_slim().pip_install("numpy")

with image.imports():
    import numpy as np


@app.function(image=image)
def mean(xs: List[float]) -> float:
    return float(np.mean(xs))


@app.local_entrypoint()
def main(n: int = 10) -> None:
    print(mean.remote(list(range(n))))
