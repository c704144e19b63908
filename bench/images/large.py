"""The image whose import is measured: more than 1 GB."""

import brisk

app = brisk.App("bench-large")
image = brisk.Image.debian_slim().apt_install("python3-torch", "python3-torchvision")


@app.function(image=image, enable_memory_snapshot=False)
def version():
    return "large"


@app.local_entrypoint()
def main():
    version.remote()
