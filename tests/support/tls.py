"""TLS in front of a server: the embedded one is built without it."""

from __future__ import annotations

import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def make_certificates(folder: Path) -> Path:
    """Make an authority (`ca.pem`) and a certificate for `localhost` (`server.pem`, `server.key`) in a folder, and return it."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is not installed, which makes the certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    authority = ("-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
    # Python 3.13 verifies strictly: an authority without it is refused.
    openssl("req", "-x509", *new_key, *authority, "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return folder


def relay(inner: Any, outer: socket.socket) -> None:
    """Copy bytes both ways until either side ends; in one thread, because OpenSSL's connections are not for two."""
    while True:
        readable = [inner] if inner.pending() else select.select([inner, outer], [], [])[0]
        for source in readable:
            data = source.recv(65536)
            if not data:
                return
            (outer if source is inner else inner).sendall(data)


@contextmanager
def tls_in_front_of(port: int, certificates: Path) -> Iterator[int]:
    """Give a port that speaks TLS and leads to `port`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    threads: list[threading.Thread] = []

    def serve(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            peer.settimeout(5)
            with (
                context.wrap_socket(peer, server_side=True) as inner,
                socket.create_connection(("127.0.0.1", port)) as outer,
            ):
                relay(inner, outer)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0],)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=accept, args=(listener,))
        acceptor.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for thread in (acceptor, *threads):
        thread.join()
