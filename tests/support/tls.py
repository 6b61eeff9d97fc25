"""Servers that speak TLS, and TLS in front of one that does not: the embedded one is built without it."""

from __future__ import annotations

import os
import select
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_redis_plus.testing.server import EmbeddedServer
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Programs that may be a server built with TLS. Debian's redis-check-rdb, of the package redis-tools, is its server.
PROGRAMS = ("redis-server", "valkey-server", "redis-check-rdb")


def make_certificates(folder: Path, names: str = "DNS:localhost") -> Path:
    """Make an authority (`ca.pem`) and its certificate for some names (`server.pem`, `server.key`) in a folder, and return it."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is not installed, which makes the certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    authority = ("-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
    # Python 3.13 verifies strictly: an authority without it is refused.
    openssl("req", "-x509", *new_key, *authority, "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text(f"subjectAltName={names}")
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


def tls_program() -> Path:
    """Return a server program that is built with TLS; skip without one."""
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None and b"tls-cert-file" in Path(found).read_bytes():
            return _as_server(Path(found))
    pytest.skip("no server with TLS: the package redis-tools of Debian brings one")


def _as_server(program: Path) -> Path:
    """Return a path by which the program acts as a server: it goes by its name."""
    if program.name != "redis-check-rdb":
        return program
    link = Path(tempfile.gettempdir()) / f"celery-redis-plus-{os.getuid()}" / "redis-server"
    link.parent.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(program)
    return link


def tls_config(certificates: Path) -> dict[str, str]:
    """Return the directives of a server that has a certificate, also for its own connections, and wants one from clients."""
    return {
        "tls-cert-file": str(certificates / "server.pem"),
        "tls-key-file": str(certificates / "server.key"),
        "tls-ca-cert-file": str(certificates / "ca.pem"),
    }


def tls_query(certificates: Path) -> str:
    """Return what a client's URL has to say: the authority, and the client's certificate."""
    return f"ssl_ca_certs={certificates}/ca.pem&ssl_certfile={certificates}/server.pem&ssl_keyfile={certificates}/server.key"


class TlsServer(EmbeddedServer):
    """A server with two ports: one speaks TLS and wants certificates from clients, the other is for what a test asks itself."""

    def __init__(self, certificates: Path, config: Mapping[str, str] | None = None) -> None:
        super().__init__(config={**tls_config(certificates), **(config or {})}, binary=tls_program())
        self._query = tls_query(certificates)

    def _launch(self, port: int) -> None:
        if not self.port:
            self.config["tls-port"] = str(free_port())
        super()._launch(port)

    @property
    def link_port(self) -> int:
        """The port that speaks TLS, by which other servers know it."""
        port = self.config["tls-port"]
        assert isinstance(port, str)
        return int(port)

    def tls_url(self, db: int = 0) -> str:
        """Return `redispluss://localhost:port/db?ssl_ca_certs=…`."""
        return f"redispluss://localhost:{self.link_port}/{db}?{self._query}"
