"""The tracking services."""

from __future__ import annotations

from forgedsl_runtime.readers.trackers.base import Tracker
from forgedsl_runtime.readers.trackers.mlflow import MlflowTracker
from forgedsl_runtime.readers.trackers.trackio import TrackioTracker
from forgedsl_runtime.readers.trackers.wandb import WandbTracker

TRACKERS: tuple[Tracker, ...] = (WandbTracker(), MlflowTracker(), TrackioTracker())
