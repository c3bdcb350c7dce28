"""Serve the last row of metrics to Prometheus, as text over HTTP on the controller's host.

row --> gauges `forgedsl_reward_mean{run="sums-1"} 0.5` --GET /metrics--> Prometheus
"""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forgedsl_runtime.readers.rows import Row

TEXT = "text/plain; version=0.0.4"


class PrometheusSink:
    """HTTP server for the last row; runs as long as the run."""

    name = "Prometheus"

    def __init__(self, port: int, run: str) -> None:
        sink = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = sink.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", TEXT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log a line for each scrape."""

        self.text = ""
        self._label = re.sub(r'["\\\n]', "_", run)
        self._server = ThreadingHTTPServer(("", port), Answer)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def resume(self, step: int) -> None:
        """Do nothing: only the last row is kept."""

    def write(self, row: Row) -> None:
        lines = []
        for key, value in row.items():
            if isinstance(value, int | float):
                name = "forgedsl_" + re.sub(r"\W", "_", key, flags=re.ASCII)
                lines.append(f"# TYPE {name} gauge")
                lines.append(f'{name}{{run="{self._label}"}} {float(value)}')
        self.text = "\n".join(lines) + "\n"

    def close(self, code: int) -> None:
        self._server.shutdown()
        self._server.server_close()
