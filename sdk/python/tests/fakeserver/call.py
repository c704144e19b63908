"""One call in a runner of its own, as the stream that the API gives."""

from __future__ import annotations

import io
import json
import queue
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.nodepeer import Peer


def run_call(
    directory: Path, ident: str, definition: dict[str, Any], blobs: dict[str, bytes], payload: bytes
) -> Iterator[bytes]:
    code = directory / "code"
    with tarfile.open(fileobj=io.BytesIO(blobs[definition["code"]])) as tar:
        code.mkdir()
        for member in tar:
            assert not member.name.startswith(("/", ".."))
            path = code / member.name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            content = tar.extractfile(member)
            assert content is not None, "code holds files and directories only"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
    out: queue.Queue[Any] = queue.Queue()
    peer = Peer(directory, code)
    peer.on_output = lambda stream, data: out.put({"type": "log", "stream": stream, "data": bytes(data)})
    worker = threading.Thread(target=_drive, args=(peer, ident, definition, blobs, payload, out), daemon=True)
    worker.start()
    try:
        yield json.dumps({"type": "accepted", "call": ident}).encode() + b"\n"
        while True:
            try:
                item = out.get(timeout=0.05)
            except queue.Empty:
                # A frame of nothing finds out whether the caller is still there, as a server does by other means.
                yield json.dumps({"type": "log", "stream": "stdout", "len": 0}).encode() + b"\n"
                continue
            data = item.pop("data", b"")
            yield json.dumps({**item, "len": len(data)}).encode() + b"\n" + data
            if item["type"] != "log":
                return
    finally:
        peer.close()
        worker.join()


def _drive(
    peer: Peer, ident: str, definition: dict[str, Any], blobs: dict[str, bytes], payload: bytes, out: queue.Queue[Any]
) -> None:
    try:
        peer.accept()
        pickled = blobs[definition["pickle"]] if definition["serialized"] else None
        env = definition["spec"].get("env")
        answer = peer.load(definition["module"], definition["qualname"], env, pickled)
        if answer["type"] == "load_failed":
            last = {"type": "exception", "call": ident, "error": answer["error"]}
        else:
            header, data = peer.call_raw(payload)
            last = {"type": header["type"], "call": ident, "ms": header["ms"], "data": data}
            if "error" in header:
                last["error"] = header["error"]
            peer.exit()
    except (EOFError, OSError):
        code = peer.wait()
        message = f"the function's process exited with {code}"
        last = {"type": "failed", "call": ident, "error": {"class": "user_code", "message": message, "hint": ""}}
    peer.close()  # all output is out before the end
    out.put(last)
