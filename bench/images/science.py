"""The image whose files are compared: a scientific Python, some 10,000 files."""

import brisk

app = brisk.App("bench-science")
image = brisk.Image.debian_slim().pip_install("numpy", "pandas", "scikit-learn")


@app.function(image=image, enable_memory_snapshot=False)
def version():
    import numpy

    return numpy.__version__


@app.local_entrypoint()
def main():
    version.remote()
