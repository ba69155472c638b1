"""How requests reach the server: Unix sockets, TLS, a root path; and the limit on their time."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import anthropic
import httpx
import openai
import pytest
from echo.model import make_model
from echo.server import Running, Start, chat_message, wait_until

from ostro.core.errors import UsageError
from ostro.entrypoints.http import stream
from ostro.entrypoints.http.listener import listen_unix, open_certificate
from ostro.entrypoints.http.root_path import parse_root_path

from .test_server import Process

Launch = Callable[..., Process]
T = TypeVar("T")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start server processes; none is left behind."""
    model, started = make_model(tmp_path / "echo"), list[Process]()

    def begin(**options: Any) -> Process:
        started.append(server := Process(model, {}, **options))
        server.wait()
        return server

    yield begin
    for server in started:
        server.process.kill()
        server.process.communicate()


def stop(server: Process) -> str:
    """End a server in order; return its log."""
    server.process.send_signal(signal.SIGTERM)
    code, _, err = server.end()
    assert code == 0 and "Traceback" not in err, err
    return err


# Unix sockets


@pytest.mark.process
def test_unix_socket(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "ostro.sock"
    server = launch(uds=str(path))
    assert server.url == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=120) as client:
        post = client.post("http://localhost/v1/completions", json={"prompt": "hi"})
        assert post.json()["choices"][0]["text"] == "hi"
        # Without a keys file there is nothing to read again.
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert client.get("http://localhost/health").status_code == 200
    err = stop(server)
    assert f"echo at unix:{path}, ready" in err and "no keys file" in err
    assert not path.exists()


def test_stale_socket_is_replaced_and_a_live_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
        ended.listen()
    with listen_unix(path):
        with pytest.raises(UsageError, match=f"--uds {path}: another server uses the socket"):
            with listen_unix(path):
                pass
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_socket_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen_unix(path):
        path.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    assert path.is_socket()
    other.close()


@pytest.mark.parametrize("kind", ["file", "folder", "missing", "long"])
def test_paths_that_are_no_sockets(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    elif kind == "missing":
        path = tmp_path / "nowhere" / "s"
    else:
        path = tmp_path / ("s" * 120)
    with pytest.raises(UsageError, match="--uds"), listen_unix(path):
        pass
    assert kind != "file" or path.read_text() == "precious"
    with listen_unix(tmp_path / "good"):
        pass


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of a self-signed certificate of localhost, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    return make_certificate(folder / "cert.pem", folder / "key.pem")


def make_certificate(
    cert: Path, key: Path, kind: str = "ec -pkeyopt ec_paramgen_curve:prime256v1"
) -> tuple[Path, Path]:
    """Write a self-signed certificate of localhost and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    words = f"req -x509 -newkey {kind} -nodes -days 2 -subj /CN=x"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    uses = "keyUsage=critical,digitalSignature,keyCertSign"
    subprocess.run(
        [openssl, *words.split(), "-addext", names, "-addext", uses, "-out", cert, "-keyout", key],
        check=True,
        capture_output=True,
    )
    return cert, key


def strict(cert: Path) -> ssl.SSLContext:
    """The context of a client that trusts one certificate and checks it strictly."""
    context = ssl.create_default_context(cadata=cert.read_text())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.process
def test_tls(launch: Launch, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    server = launch(ssl_certfile=str(cert), ssl_keyfile=str(key))
    assert server.url.startswith("https://127.0.0.1:")
    port = int(server.url.rpartition(":")[2])
    with httpx.Client(verify=strict(cert), timeout=120) as http:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", http_client=http)
        assert client.completions.create(model="echo", prompt="hi").choices[0].text == "hi"
        stream = client.completions.create(model="echo", prompt="hello", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "hello"
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.get(f"{server.url}/health")
    # Data that is not TLS, and a refused body that TLS cannot end with a half-closed connection.
    with socket.create_connection(("127.0.0.1", port), timeout=120) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP/1.1 200" not in plain.recv(1000)
    with socket.create_connection(("127.0.0.1", port), timeout=120) as plain:
        with strict(cert).wrap_socket(plain, server_hostname="localhost") as secure:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            head += b"Content-Type: application/json\r\n"
            secure.sendall(head + b"Content-Length: 999999999999\r\n\r\n")
            assert secure.recv(1000).startswith(b"HTTP/1.1 413")
    with httpx.Client(verify=strict(cert)) as http:
        assert http.get(f"{server.url}/health").status_code == 200
    stop(server)


@pytest.mark.process
def test_certificate_is_read_again_on_sighup(launch: Launch, tmp_path: Path) -> None:
    """The new one replaces one of another kind of key; files that do not match change nothing."""
    cert, key = make_certificate(tmp_path / "cert.pem", tmp_path / "key.pem", "rsa:2048")
    server = launch(ssl_certfile=str(cert), ssl_keyfile=str(key))
    port = int(server.url.rpartition(":")[2])

    def served() -> str:
        return ssl.get_server_certificate(("127.0.0.1", port))

    def reload(expected: str) -> None:
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 120
        while served() != expected:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    first = cert.read_text()
    with httpx.Client(base_url=server.url, verify=strict(cert), timeout=120) as open_before:
        assert open_before.get("/health").status_code == 200
        second = make_certificate(cert, key)[0].read_text()
        assert served() == first
        reload(second)
        assert open_before.get("/health").status_code == 200
    with httpx.Client(base_url=server.url, verify=strict(cert), timeout=120) as open_after:
        assert open_after.get("/health").status_code == 200
    cert.write_text(first)
    server.process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert served() == second
    third = make_certificate(cert, key)[0].read_text()
    reload(third)
    err = stop(server)
    assert err.count("key.pem: not a PEM certificate with its key") == 1, err
    assert err.count("the certificate is unchanged") == 1, err
    assert err.count("is read again") == 2 and "no keys file" not in err, err


@pytest.mark.process
def test_bad_certificates(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    both, garbage = tmp_path / "both.pem", tmp_path / "garbage.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    garbage.write_text("-----BEGIN CERTIFICATE-----\nabc\n")
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True,
        capture_output=True,
    )
    for pair in ((cert, None), (garbage, key), (cert, cert), (tmp_path, key), (cert, locked)):
        with pytest.raises(UsageError, match="--ssl-certfile"):
            open_certificate(*pair)
    with pytest.raises(UsageError, match="nowhere"):
        open_certificate(cert, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="--ssl-keyfile requires --ssl-certfile"):
        open_certificate(None, key)
    open_certificate(both, None)
    open_certificate(cert, key)
    open_certificate(None, None)


# The root path


def test_root_path(start: Start) -> None:
    server = start(root_path="/models", keys=["secret"])
    key = {"x-api-key": "secret"}
    for prefix in ("", "/models"):
        assert server.http.get(f"{prefix}/health").status_code == 200
        assert server.http.get(f"{prefix}/v1/models").status_code == 401
        assert server.http.get(f"{prefix}/v1/models", headers=key).status_code == 200
        document = server.http.get(f"{prefix}/openapi.json").json()
        assert document["servers"] == [{"url": "/models"}]
        assert "/v1/models" in document["paths"]
    for path in ("/modelsv1/models", "/models/models/v1/models"):
        assert server.http.get(path, headers=key).status_code == 404
    # The page finds the document and the routes below any path.
    page = server.http.get("/models/docs").text
    assert 'fetch("openapi.json")' in page and "fetch(path.slice(1)" in page
    client = openai.OpenAI(base_url=f"{server.url}/models/v1", api_key="secret")
    assert client.completions.create(model="echo", prompt="hi").choices[0].text == "hi"


def test_without_a_root_path(server: Running) -> None:
    assert "servers" not in server.http.get("/openapi.json").json()
    assert server.http.get("/models/v1/models").status_code == 404


@pytest.mark.parametrize("text", ["models", "/a b", "//", "/a//b", "/a?b", "https://x/a", "/ä"])
def test_invalid_root_paths(text: str) -> None:
    if text == "//":
        assert parse_root_path(text) == ""
        return
    with pytest.raises(UsageError, match="--root-path"):
        parse_root_path(text)
    assert parse_root_path("/a/b-c/") == "/a/b-c"


# The time limit


@pytest.fixture(scope="module")
def slow(start: Start) -> Running:
    """A server whose requests have an hour."""
    return start(request_timeout=3600)


def check_idle(server: Running) -> None:
    """The engine has no request a moment later, and another one succeeds."""
    wait_until(lambda: not server.echo.live, "the request runs on")
    answer = server.complete("abc")
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == "abc"


def late(server: Running, request: Callable[[], T]) -> T:
    """The result of a request that the engine gets no time for, once its hour is over."""
    with ThreadPoolExecutor(1) as pool, server.paused():
        answer = pool.submit(request)
        wait_until(lambda: server.echo.live)
        server.loop.advance(1800)
        assert server.http.get("/health").status_code == 200 and not answer.done()
        server.loop.advance(1800)
        return answer.result()


def test_request_timeout(slow: Running) -> None:
    answer = late(slow, lambda: slow.complete("abc"))
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
    check_idle(slow)


def test_request_timeout_of_a_stream(slow: Running) -> None:
    body = {"prompt": "abc", "ignore_eos": True, "stream": True}
    with (
        slow.paused(steps=1),
        slow.http.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"]
        slow.loop.advance(3600)
        *_, last, _, done, _ = lines
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert done == "data: [DONE]"
    check_idle(slow)


def test_request_timeout_before_the_first_event(
    slow: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE", 10_000.0)  # a comment would be the first event
    answer = late(slow, lambda: slow.complete("abc", stream=True))
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
    check_idle(slow)


def test_request_timeout_at_anthropics_routes(slow: Running) -> None:
    client = anthropic.Anthropic(base_url=slow.url, api_key="-", max_retries=0)
    messages: Any = [chat_message("hi")]
    with pytest.raises(anthropic.APIStatusError) as raised:
        late(slow, lambda: client.messages.create(model="echo", max_tokens=9, messages=messages))
    assert raised.value.status_code == 504
    assert raised.value.body["error"]["type"] == "timeout_error"  # type: ignore[index]
    check_idle(slow)
