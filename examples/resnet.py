"""A model that is loaded and warm before the first call: `brisk run examples/resnet.py`.

What happens when the module is imported inside (importing torch, making the model, one forward pass) happens once: a
later container starts from a snapshot of the memory after it. The weights are random, from a fixed seed, so that there
is nothing to download and the result is the same everywhere.
"""

from typing import Dict, Union

import brisk

app = brisk.App("resnet")
image = brisk.Image.debian_slim().apt_install("python3-torch", "python3-torchvision")

if not brisk.is_local():
    import torch
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    with torch.inference_mode():
        model(torch.zeros(1, 3, 224, 224))


@app.function(image=image, cpu=2, memory=4096)
def classify(seed: int = 1) -> Dict[str, Union[int, float]]:
    """Classify an image of noise.

    Args:
        seed: of the noise.

    Returns:
        The most likely class, and the sum of all logits, to compare runs by.
    """
    noise = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        logits = model(noise)[0]
    return {"class": int(logits.argmax()), "checksum": round(float(logits.double().sum()), 4)}


@app.local_entrypoint()
def main(seed: int = 1) -> None:
    result = classify.remote(seed)
    print(f"class {result['class']}, checksum {result['checksum']}")
