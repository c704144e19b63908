"""A function that returns its argument: what is left is Brisk."""

import brisk
from loop import serve

app = brisk.App("bench-echo")


@app.function(image=brisk.Image.debian_slim(), scaledown_window=600)
def echo(x):
    return x


@app.local_entrypoint()
def main():
    serve(lambda: echo.remote(1))
