"""Proxies of the environment: used for other machines only, and named when they fail."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from edgespec.errors import EdgespecError, UsageError
from edgespec.files.proxies import given, is_this_machine, proxy_for, reach_directly
from edgespec.remote.connection import Connection

SECRET = "bob:s3cret@"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in given("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name)


@contextmanager
def answering(reply: bytes, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """A program on a port of this machine that answers each request so, and the requests."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listening.accept()
                except OSError:
                    return
                with tls.wrap_socket(sock, server_side=True) if tls else sock as sock:
                    heads.append(sock.recv(2**16))
                    sock.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], heads
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "a.localhost",
        "127.0.0.1",
        "127.1",
        "127.9.8.7",
        "0.0.0.0",
        "::1",
        "[::1]",
        "::",
        "::ffff:127.0.0.1",
        socket.gethostname(),
        socket.gethostname().upper(),
        socket.gethostname() + ".",
    ],
)
def test_names_and_addresses_of_this_machine(host: str) -> None:
    assert is_this_machine(host)


@pytest.mark.parametrize(
    "host", ["", "example.com", "localhost.example.com", "192.0.2.1", "2001:db8::1", "127.0.0.1.example.com"]
)
def test_names_and_addresses_of_others(host: str) -> None:
    assert not is_this_machine(host)


def test_addresses_of_its_networks_are_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        assert is_this_machine(sock.getsockname()[0])


def test_the_proxy_for_an_address_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("http://gpu.example") == ""
    monkeypatch.setenv("HTTP_PROXY", f"http://{SECRET}proxy.example:3128/")
    monkeypatch.setenv("all_proxy", "socks5://proxy.example:1080")
    assert proxy_for("http://gpu.example:8080") == "HTTP_PROXY (proxy.example:3128)"
    assert proxy_for("https://gpu.example") == "all_proxy (proxy.example:1080)"
    assert proxy_for("http://127.0.0.1:8080") == proxy_for(f"http://{socket.gethostname()}") == ""
    monkeypatch.setenv("NO_PROXY", "gpu.example")
    assert proxy_for("http://gpu.example:8080") == ""


def test_a_mirror_on_this_machine_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "intra.example")
    for url in ("", "no url", "http://[", "https://hub.example"):
        reach_directly(url)
        assert given("NO_PROXY") == ["NO_PROXY"]
    monkeypatch.setenv("no_proxy", "intra.example")  # is set below, and removed after the test
    for _ in range(2):
        reach_directly("http://127.0.0.1:5000/hub")
    for name in ("NO_PROXY", "no_proxy"):
        assert os.environ[name] == "intra.example,127.0.0.1"


def test_certificates_of_the_environment_hold_for_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, datetime(2020, 1, 1), datetime(2120, 1, 1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, secret = tmp_path / "a.pem", tmp_path / "a.key"
    pem.write_bytes(certificate.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(pem, secret)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with answering(reply, served) as (port, _), Connection(f"https://localhost:{port}") as connection:
        assert connection.wait_for(connection.ask("GET", "/v1/models")) == {}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (f"socks5://{SECRET}127.0.0.1:1", "a SOCKS proxy needs the package socksio"),
        (f"foo://{SECRET}127.0.0.1:1", "Unknown scheme for proxy URL"),
        (f"http://{SECRET[:-1]}/@127.0.0.1:1", "one of them is not an address"),
    ],
)
def test_proxies_that_cannot_be_used_are_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, value: str, why: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(UsageError, match="proxy or certificate settings cannot be used") as caught:
        Connection("http://gpu.example:8080")
    assert caught.value.why.startswith(why)
    assert "ALL_PROXY" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    with pytest.raises(EdgespecError), Connection("http://127.0.0.1:1") as direct:  # needs no proxy
        direct.wait_for(direct.ask("GET", "/v1/models"))


@pytest.mark.parametrize(
    ("reply", "scheme"),
    [
        (b"", "http"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nno!\n", "http"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "https"),
        (b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", "http"),
    ],
)
def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch, reply: bytes, scheme: str) -> None:
    with answering(reply) as (port, heads):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://{SECRET}127.0.0.1:{port}")
        with Connection(f"{scheme}://gpu.example:8080") as connection, pytest.raises(EdgespecError) as caught:
            connection.wait_for(connection.ask("GET", "/v1/models"))
    assert heads
    assert f"{scheme}_proxy (127.0.0.1:{port})" in caught.value.what
    assert "NO_PROXY" in caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("http_proxy", f"127.0.0.1:{port}")
    with Connection("http://gpu.example:8080") as connection, pytest.raises(EdgespecError) as caught:
        connection.wait_for(connection.ask("GET", "/v1/models"))
    assert f"through http_proxy (127.0.0.1:{port})" in caught.value.what
