"""A server of S3's interface, in this process: it can be stopped and started, and keeps what it has."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

import pytest
from pyarrow import fs

#: In the environment as the key; it may stand nowhere else.
SECRET = "secret-of-the-test"


class S3:
    """A server with an empty bucket.

    Attributes:
        url: of a place in the bucket.
        env: what finds it.
    """

    def __init__(self) -> None:
        self._moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="needs moto[s3], flask and flask-cors")
        self._werkzeug = pytest.importorskip("werkzeug.serving", reason="needs moto[s3], flask and flask-cors")
        # A line for each request.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server: Any = None
        self._port = 0
        self.start()
        # All servers of a process have the same buckets.
        bucket = f"lake-{uuid.uuid4().hex}"
        self.url = f"s3://{bucket}/celery"
        address = f"http://127.0.0.1:{self._port}"
        self.env = {
            "AWS_ACCESS_KEY_ID": SECRET,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": address,
        }
        maker = fs.S3FileSystem(access_key="x", secret_key="y", endpoint_override=address, allow_bucket_creation=True)
        maker.create_dir(bucket)

    def start(self) -> None:
        """Start it, at the port that it had."""
        # Moto's own server looks through all services of AWS at each request, a third of its time.
        app = self._moto.create_backend_app("s3")
        handler = self._moto.MotoRequestHandler
        self._server = self._werkzeug.make_server("127.0.0.1", self._port, app, threaded=True, request_handler=handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Stop it: nobody answers at its port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
