"""Drives the real scheduler without a model: `build` makes one, `Driver` steps it, a symbolic worker computes."""

from tests.replicas.scheduler.harness.build import EngineShape, build_scheduler
from tests.replicas.scheduler.harness.driver import Driver, Step
from tests.replicas.scheduler.harness.worker import expected_output

__all__ = ["Driver", "EngineShape", "Step", "build_scheduler", "expected_output"]
