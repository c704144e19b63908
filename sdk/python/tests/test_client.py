"""The client against a fake server: transport, streams, failures."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brisk import _client, exception
from brisk._client import BuildObserver, Client, Raised, Returned
from brisk._tar import seal
from tests.fakeserver import FakeServer, Reply, frame

FUNCTION = "f" * 64
CALL = f"POST /v1/w/default/functions/{FUNCTION}/call"


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    client = Client(server.socket)
    yield client
    client.close()


def no_log(_stream: str, _data: bytearray) -> None:
    raise AssertionError("no output was expected")


def test_requests_share_a_connection(server: FakeServer, client: Client) -> None:
    for _ in range(5):
        assert client.info()["version"] == "fake"
    assert server.connections == 1


def test_connection_that_the_server_closed_is_replaced(server: FakeServer, client: Client) -> None:
    server.replace["GET /v1/info"] = lambda _: Reply(json={}, headers={"Connection": "close"})
    client.info()
    del server.replace["GET /v1/info"]
    client.info()
    assert server.connections == 2


def test_server_that_restarts_is_found_again(tmp_path: Path) -> None:
    with FakeServer(tmp_path) as server:
        client = Client(server.socket)
        client.info()
    os.unlink(server.socket)
    with FakeServer(tmp_path):
        # The old server's thread may still hold the idle connection open: then it also answers.
        assert client.info()["version"] == "fake"
    client.close()


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(exception.ConnectionError) as caught:
        Client(str(tmp_path / "none.sock")).info()
    assert isinstance(caught.value, ConnectionError)
    assert str(caught.value) == (
        f"no Brisk server answers on {tmp_path}/none.sock: No such file or directory\nStart one with `brisk up`."
    )
    assert exception.exit_code(caught.value) == 7


def test_blobs(server: FakeServer, client: Client) -> None:
    blob = seal(io.BytesIO(b"x" * 3_000_000))
    client.put_blob(blob.digest, blob.file, blob.size)
    client.put_blob(blob.digest, blob.file, blob.size)
    assert server.blobs == {blob.digest: b"x" * 3_000_000}
    assert [r.split()[0] for r in server.requests] == ["HEAD", "PUT", "HEAD"]


def test_blob_from_a_file(server: FakeServer, client: Client, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abc" * 1_000_000)
    with open(tmp_path / "data", "rb") as file:
        blob = seal(file)
        client.put_blob(blob.digest, blob.file, blob.size)
    assert len(server.blobs[blob.digest]) == 3_000_000


@pytest.mark.parametrize(("kind", "expected"), exception.BY_CLASS.items())
def test_error_classes(server: FakeServer, client: Client, kind: str, expected: type[exception.Error]) -> None:
    body = {"error": {"class": kind, "message": "it went wrong", "hint": "Do better."}}
    server.replace["POST /v1/w/default/functions"] = lambda _: Reply(500, json=body)
    with pytest.raises(exception.Error) as caught:
        client.create_function({})
    assert type(caught.value) is expected
    assert (caught.value.message, caught.value.hint) == ("it went wrong", "Do better.")


def test_unknown_error_class_is_internal() -> None:
    error = exception.from_api({"class": "quantum", "message": "m"})
    assert type(error) is exception.InternalError
    assert exception.exit_code(error) == 70


def test_error_that_is_no_json(server: FakeServer, client: Client) -> None:
    server.replace["GET /v1/info"] = lambda _: Reply(502, json="oops")
    with pytest.raises(exception.InternalError, match="answered 502"):
        client.info()


class Recorder(BuildObserver):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def step(self, index: int, total: int, text: str, cached: bool) -> None:
        self.seen.append((index, total, text, cached))

    def log(self, data: bytes) -> None:
        self.seen.append(data)

    def progress(self, text: str) -> None:
        self.seen.append(text)


def test_build(server: FakeServer, client: Client) -> None:
    frames = [
        frame("step", index=1, total=2, text="debian", cached=True),
        frame("step", index=2, total=2, text="pip install numpy", cached=False),
        frame("log", b"Collecting numpy\n"),
        frame("progress", text="3 of 4"),
        frame("done", digest="ab" * 32),
    ]
    server.replace["POST .*/images/build"] = lambda _: Reply(stream=frames)
    recorder = Recorder()
    assert client.build_image({"base": {}, "steps": []}, recorder) == "ab" * 32
    assert recorder.seen == [
        (1, 2, "debian", True),
        (2, 2, "pip install numpy", False),
        b"Collecting numpy\n",
        "3 of 4",
    ]


def test_build_failure_carries_the_step_and_its_output(server: FakeServer, client: Client) -> None:
    frames = [
        frame("step", index=1, total=2, text="first", cached=False),
        frame("log", b"not this"),
        frame("step", index=2, total=2, text="second", cached=False),
        frame("log", b"x" * 100_000),
        frame("log", b"no such package\n"),
        frame("error", error={"class": "build_failed", "message": "exit status 1", "hint": ""}),
    ]
    server.replace["POST .*/images/build"] = lambda _: Reply(stream=frames)
    with pytest.raises(exception.BuildError) as caught:
        client.build_image({})
    assert caught.value.step == "second"
    assert caught.value.log.endswith("xxno such package\n")
    assert len(caught.value.log) == 64 << 10


def call_reply(server: FakeServer, *frames: bytes, cut: bool = False) -> None:
    server.replace[CALL] = lambda _: Reply(stream=frames, cut=cut)


def test_call_result(server: FakeServer, client: Client) -> None:
    call_reply(server, frame("accepted", call="c"), frame("result", b"PICKLE", call="c", ms=1.5))
    for _ in range(3):
        assert client.call(FUNCTION, "app", b"args", no_log) == Returned("c", bytearray(b"PICKLE"), 1.5)
    assert server.connections == 1


def test_call_sends_the_app_and_the_payload(server: FakeServer, client: Client) -> None:
    seen: list[Any] = []

    def answer(request: Any) -> Reply:
        seen.append((request.headers["Brisk-App"], request.body))
        return Reply(stream=[frame("result", b"", call="c", ms=0)])

    server.replace[CALL] = answer
    client.call(FUNCTION, "app", b"x" * 1_000_000, no_log)
    assert seen == [("app", b"x" * 1_000_000)]


def test_call_exception(server: FakeServer, client: Client) -> None:
    error = {"type": "E", "module": "m", "message": "no", "traceback": "T", "kind": "raised"}
    call_reply(server, frame("exception", b"", call="c", error=error))
    assert client.call(FUNCTION, "app", b"", no_log) == Raised("c", bytearray(), error)


def test_call_failure(server: FakeServer, client: Client) -> None:
    call_reply(server, frame("failed", call="c", error={"class": "timeout", "message": "too long", "hint": ""}))
    with pytest.raises(exception.TimeoutError, match="too long") as caught:
        client.call(FUNCTION, "app", b"", no_log)
    assert isinstance(caught.value, TimeoutError)


def test_frames_in_any_pieces(server: FakeServer, client: Client) -> None:
    """Chunks cut frames anywhere; the client sees the same."""
    whole = (
        frame("accepted", call="c")
        + frame("log", b"out\nput", stream="stdout")
        + frame("log", b"\n{err", stream="stderr")
        + frame("result", b"PICKLE\n" * 3, call="c", ms=1)
    )
    for size in (1, 2, 3, 7, 50, 10_000):
        pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
        call_reply(server, *pieces)
        logs: list[Any] = []
        outcome = client.call(FUNCTION, "app", b"", lambda stream, data, logs=logs: logs.append((stream, bytes(data))))  # type: ignore[misc]
        assert logs == [("stdout", b"out\nput"), ("stderr", b"\n{err")]
        assert outcome == Returned("c", bytearray(b"PICKLE\n" * 3), 1)


def test_large_result_in_small_chunks(server: FakeServer, client: Client) -> None:
    body = os.urandom(1 << 20) * 64
    whole = frame("result", body, call="c", ms=1)
    call_reply(server, *[whole[i : i + 4096] for i in range(0, len(whole), 4096)])
    outcome = client.call(FUNCTION, "app", b"", no_log)
    assert isinstance(outcome, Returned)
    assert outcome.payload == body


def test_long_lines(server: FakeServer, client: Client) -> None:
    error = {"type": "E", "module": "m", "message": "x" * 500_000, "traceback": "", "kind": "raised"}
    call_reply(server, frame("exception", b"", call="c", error=error))
    outcome = client.call(FUNCTION, "app", b"", no_log)
    assert isinstance(outcome, Raised)
    assert outcome.error == error


@pytest.mark.parametrize(
    "frames",
    [
        [frame("accepted", call="c")],
        [frame("accepted", call="c"), frame("result", b"x" * 100, call="c", ms=1)[:-50]],
        [b'{"type":"res'],
        [],
    ],
)
@pytest.mark.parametrize("cut", [True, False])
def test_answers_that_end_too_early(server: FakeServer, client: Client, frames: list[bytes], cut: bool) -> None:
    call_reply(server, *frames, cut=cut)
    with pytest.raises((exception.ConnectionError, exception.CorruptError)):
        client.call(FUNCTION, "app", b"", no_log)


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"3\n", b'{"len":1}\n', b'{"type":"log","len":-1}\n'])
def test_what_is_no_frame(server: FakeServer, client: Client, line: bytes) -> None:
    call_reply(server, line)
    with pytest.raises(exception.CorruptError):
        client.call(FUNCTION, "app", b"", no_log)


def test_leaving_a_call_closes_the_connection(server: FakeServer, client: Client) -> None:
    """Ctrl-C arrives as KeyboardInterrupt anywhere: here, in on_log."""

    def endless() -> Iterator[bytes]:
        while True:
            yield frame("log", b"tick\n", stream="stdout")

    server.replace[CALL] = lambda _: Reply(stream=endless())

    def interrupt(_stream: str, _data: bytearray) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.call(FUNCTION, "app", b"", interrupt)
    assert server.cancelled.wait(60)


def test_silence_is_patience_while_the_server_lives(server: FakeServer, client: Client) -> None:
    client._pool.timeout = 0.01
    asked = threading.Event()

    def info(_request: Any) -> Reply:
        asked.set()
        return Reply(json={})

    def slow() -> Iterator[bytes]:
        yield frame("accepted", call="c")
        assert asked.wait(60)
        yield frame("result", b"late", call="c", ms=1)

    server.replace["GET /v1/info"] = info
    server.replace[CALL] = lambda _: Reply(stream=slow())
    assert client.call(FUNCTION, "app", b"", no_log) == Returned("c", bytearray(b"late"), 1)


def test_hung_server_is_an_error(server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_client, "PROBE", 0.01)
    client._pool.timeout = 0.01
    done = threading.Event()

    def hang(_request: Any) -> Reply:
        done.wait(60)
        return Reply(json={})

    server.replace["GET /v1/info"] = hang
    server.replace[CALL] = hang
    with pytest.raises(exception.TimeoutError, match="does not answer"):
        client.call(FUNCTION, "app", b"", no_log)
    done.set()


def test_threads_use_connections_of_their_own(server: FakeServer, client: Client) -> None:
    barrier = threading.Barrier(4)

    def answer(request: Any) -> Reply:
        barrier.wait(60)
        return Reply(stream=[frame("result", request.body, call="c", ms=1)])

    server.replace[CALL] = answer
    got: dict[int, Any] = {}

    def one(n: int) -> None:
        got[n] = client.call(FUNCTION, "app", b"%d" % n, no_log)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: bytes(outcome.payload) for n, outcome in got.items()} == {n: b"%d" % n for n in range(4)}
    assert server.connections == 4


def test_forked_child_has_connections_of_its_own(server: FakeServer, client: Client) -> None:
    client.info()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if client.info()["version"] == "fake" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.info()["version"] == "fake"
    assert server.connections == 2


def test_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_SOCKET", "/x/api.sock")
    monkeypatch.setenv("BRISK_WORKSPACE", "team/a")
    client = Client()
    assert (client.socket, client.workspace) == ("/x/api.sock", "team/a")
    assert client._prefix == "/v1/w/team%2Fa"
    monkeypatch.delenv("BRISK_SOCKET")
    monkeypatch.delenv("BRISK_WORKSPACE")
    assert (Client().socket, Client().workspace) == ("/run/brisk/default/api.sock", "default")


def test_what_is_not_http(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(exception.CorruptError, match="does not speak HTTP"):
            Client(str(tmp_path / "s")).info()
        thread.join()


def test_definitions_travel_as_json(server: FakeServer, client: Client) -> None:
    digest = client.create_function({"app": "a", "name": "f"})
    assert server.functions[digest] == {"app": "a", "name": "f"}
    assert json.dumps(server.functions[digest])
