"""A function that needs numpy: the light case."""

import brisk
from loop import serve

app = brisk.App("bench-numpy")
image = brisk.Image.debian_slim().pip_install("numpy")

with image.imports():
    import numpy


@app.function(image=image, scaledown_window=0.1)
def mean(xs):
    return float(numpy.mean(xs))


@app.local_entrypoint()
def main():
    serve(lambda: mean.remote(list(range(20))))
