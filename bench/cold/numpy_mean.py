"""A function that needs numpy: the light case. $BRISK_BENCH_RUN makes it a new function, which has no snapshot yet."""

import os

import brisk
from loop import serve

app = brisk.App("bench-numpy")
image = brisk.Image.debian_slim().pip_install("numpy")

with image.imports():
    import numpy


@app.function(image=image, scaledown_window=0.5, env={"BENCH_RUN": os.environ.get("BRISK_BENCH_RUN", "")})
def mean(xs):
    return float(numpy.mean(xs))


@app.local_entrypoint()
def main():
    serve(lambda: mean.remote(list(range(20))))
