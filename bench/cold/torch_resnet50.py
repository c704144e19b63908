"""A forward pass of resnet50: the heavy case. Random weights with a fixed seed; one warm pass before the snapshot."""

import os

import brisk
from loop import serve

app = brisk.App("bench-torch")
image = brisk.Image.debian_slim().apt_install("python3-torch", "python3-torchvision")

with image.imports():
    import torch
    import torchvision

    torch.manual_seed(20261130)
    torch.set_num_threads(2)
    model = torchvision.models.resnet50(weights=None).eval()
    picture = torch.linspace(-1, 1, 3 * 224 * 224).reshape(1, 3, 224, 224)
    with torch.inference_mode():
        model(picture)


@app.function(
    image=image, memory=4096, cpu=2, scaledown_window=0.1, env={"BENCH_RUN": os.environ.get("BRISK_BENCH_RUN", "")}
)
def classify():
    with torch.inference_mode():
        logits = model(picture)[0]
    return {"class": int(logits.argmax()), "sum": round(float(logits.double().sum()), 3)}


@app.local_entrypoint()
def main():
    serve(classify.remote)
