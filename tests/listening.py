"""An HTTP server that receives notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Listener:
    """A real server, which stores what was posted and answers as configured."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status, self.location = 204, ""
        self.on_post: Callable[[], None] = lambda: None
        """Called before it answers."""
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                listener.paths.append(self.path)
                listener.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                listener.on_post()
                self.send_response(listener.status)
                if listener.location:
                    self.send_header("Location", listener.location)
                self.end_headers()

            def do_GET(self) -> None:
                listener.paths.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
