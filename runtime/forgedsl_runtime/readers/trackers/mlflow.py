"""MLflow: a tracking server, or a database without a server."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from forgedsl.lower.job import Job, Logging, Mlflow
from forgedsl_runtime.readers.rows import Row, Sink
from forgedsl_runtime.readers.trackers.base import config_of, numbers, tag

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""limits for a server that does not answer, unless the environment sets others"""
FINISH_SECONDS = 60.0
"""time limit to send the remaining rows at the end of the run"""
ENDS = {0: "FINISHED", 75: "KILLED", 130: "KILLED"}
"""exit codes -> status of the run there; others are FAILED"""


class MlflowTracker:
    name = "mlflow"
    package = "mlflow-skinny"

    def settings(self, logging: Logging) -> Mlflow | None:
        return logging.mlflow

    def open(self, settings: Mlflow, job: Job, run_dir: Path) -> Sink | str:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        client: Any = MlflowClient(tracking_uri=settings.uri)
        known = client.get_experiment_by_name(settings.experiment)
        number = known.experiment_id if known else client.create_experiment(settings.experiment)
        config = config_of(job)
        run = client.create_run(
            number, run_name=run_dir.name, tags={"forgedsl.job": config["hash"]}
        )
        for name, value in {**config["params"], "seed": config["seed"]}.items():
            client.log_param(run.info.run_id, name, value)
        return MlflowSink(client, run.info.run_id)


class MlflowSink:
    """A run in MLflow. A thread sends the rows, so that the run does not wait for the server."""

    name = "MLflow"

    def __init__(self, client: Any, run: str) -> None:
        self._client = client
        self._run = run
        self._thread = ThreadPoolExecutor(1)
        self._sent: deque[Future[None]] = deque()
        """rows under way, oldest first"""

    def resume(self, step: int) -> None:
        """Do nothing: a resumed run is a new run in MLflow."""

    def write(self, row: Row) -> None:
        while self._sent and self._sent[0].done():
            self._sent.popleft().result()  # a failure ends the sending
        self._sent.append(self._thread.submit(self._send, row, int(time.time() * 1000)))

    def close(self, code: int) -> None:
        try:
            end = time.monotonic() + FINISH_SECONDS
            for sent in self._sent:
                sent.result(max(0.0, end - time.monotonic()))
            self._client.set_terminated(self._run, ENDS.get(code, "FAILED"))
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, row: Row, now: int) -> None:
        from mlflow.entities import Metric

        values = [Metric(tag(k), v, now, row["step"]) for k, v in numbers(row).items()]
        self._client.log_batch(self._run, metrics=values)
