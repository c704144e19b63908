"""A numpy function whose every start is a whole one: no snapshot."""


import brisk

app = brisk.App("bench-first")
image = brisk.Image.debian_slim().pip_install("numpy")


@app.function(image=image, enable_memory_snapshot=False, scaledown_window=0.1)
def mean(xs):
    import numpy

    return float(numpy.mean(xs))


@app.local_entrypoint()
def main():
    assert mean.remote([1, 2, 3]) == 2
