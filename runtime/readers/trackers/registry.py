"""The tracking services."""

from __future__ import annotations

from forgedsl.runtime.readers.trackers.base import Tracker
from forgedsl.runtime.readers.trackers.mlflow import MlflowTracker
from forgedsl.runtime.readers.trackers.trackio import TrackioTracker
from forgedsl.runtime.readers.trackers.wandb import WandbTracker

TRACKERS: tuple[Tracker, ...] = (WandbTracker(), MlflowTracker(), TrackioTracker())
