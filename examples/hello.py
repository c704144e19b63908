"""The smallest function: `brisk run examples/hello.py --name you`."""

import os
import platform

import brisk

app = brisk.App("hello")


@app.function()
def hello(name: str) -> str:
    print(f"Python {platform.python_version()} here, in process {os.getpid()}")
    return f"Hello, {name}!"


@app.local_entrypoint()
def main(name: str = "world") -> None:
    print(hello.remote(name))
