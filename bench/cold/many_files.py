"""An image with 30,000 files more than it needs: what does opening it take?"""

import brisk
from loop import serve

app = brisk.App("bench-many")
image = brisk.Image.debian_slim().run_commands(
    "mkdir /many && cd /many && for d in $(seq 100); do mkdir $d; for f in $(seq 300); do echo $d/$f > $d/$f; done; done"
)


@app.function(image=image, scaledown_window=0.1, enable_memory_snapshot=False)
def read(path):
    with open(path) as file:
        return file.read().strip()


@app.local_entrypoint()
def main():
    serve(lambda: read.remote("/many/100/300"))
