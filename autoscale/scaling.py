"""Decides and applies: asks the policy, keeps its state across restarts, sets the target, remembers what it did.

One writer, the control loop. Owns no rule and no number; a target that cannot be set is told as a fault and asked for
again in the next period, as the policy repeats itself until it is obeyed.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

from autoscale.policy import ScalingDecision, ScalingReason, ScalingRules, decide
from autoscale.scaling_state import ScalingState, dump_state, load_state
from autoscale.summary import ServedReplicas
from autoscale.view import FleetView
from slo.logs import ModelLog
from slo.priority import PriorityClass
from slo.settings import Settings

MAX_KEPT = 20
"""Decisions that the status page shows."""
logger = logging.getLogger("expresslane.autoscale")


class ActuatorError(Exception):
    """The replicas could not be read or set. The message says why, for an operator."""


class ScalerDisabled(ActuatorError):
    """Serve takes no target for this application: it was deployed without `external_scaler_enabled`."""


class Actuator(Protocol):
    """Where the number of replicas is read and set. Called by the control loop only."""

    async def read(self) -> ServedReplicas:
        """The replicas by state. Raises ActuatorError."""
        ...

    async def set_target(self, target: int) -> None:
        """Sets the target; idempotent. Raises ActuatorError."""
        ...


class Memory(Protocol):
    """What survives the controller's process. Called by the control loop only."""

    async def load(self) -> bytes | None:
        """What was saved last; None when nothing ever was."""
        ...

    async def save(self, value: bytes) -> None:
        """Replaces what was saved."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the target: made, or only told (dry run)."""

    at_s: float
    from_replicas: int
    to_replicas: int
    reason: ScalingReason
    detail: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """Why replicas cannot be read or set, and since when."""

    since_s: float
    message: str


class Scaling:
    """The number of replicas, as this controller sees to it."""

    def __init__(self, settings: Settings, actuator: Actuator, memory: Memory, clock: Callable[[], float]) -> None:
        self._log = ModelLog(logger, settings.model.served_names[0])
        self._mode = settings.autoscale.mode
        self._rules = ScalingRules.of(settings)
        self._actuator = actuator
        self._memory = memory
        self._clock = clock
        self._state: ScalingState | None = None
        self._told: Change | None = None
        self._served: ServedReplicas | None = None
        self.changes: deque[Change] = deque(maxlen=MAX_KEPT)
        """The latest first."""
        self.num_changes: Counter[ScalingReason] = Counter()
        self._read_fault: Fault | None = None
        self._set_fault: Fault | None = None

    @property
    def fault(self) -> Fault | None:
        """What stands in the way of scaling now."""
        return self._set_fault or self._read_fault

    async def read(self) -> ServedReplicas | None:
        """The replicas by state; None, and a fault, when Serve cannot be asked."""
        try:
            served = await self._actuator.read()
        except ActuatorError as error:
            self._read_fault = self._fault(error, self._read_fault)
            return None
        self._read_fault = None
        if served != self._served:
            self._log.info(
                "replicas target=%d running=%d starting=%d draining=%d",
                served.target,
                served.running,
                served.starting,
                served.draining,
            )
        self._served = served
        return served

    async def act(self, view: FleetView, breaches: Set[PriorityClass]) -> None:
        """Decides for this period and, unless it is a dry run, sees to it that Serve has the target."""
        if self._mode == "off":
            return
        if self._state is None:
            self._state = await self._recall()
        decision, self._state = decide(view, breaches, self._state, self._rules, view.now_s)
        await self._memory.save(dump_state(self._state).encode())  # first: a restart in between ends in the new target
        if view.replicas is None or decision.target is None:
            return
        if decision.target == view.replicas.target:
            self._told, self._set_fault = None, None
            return
        await self._change(_change_of(decision, decision.target, view, dry_run=self._mode == "dry_run"))

    async def _change(self, change: Change) -> None:
        if not change.dry_run:
            try:
                await self._actuator.set_target(change.to_replicas)
            except ActuatorError as error:
                self._set_fault = self._fault(error, self._set_fault)
                return
        self._set_fault = None
        told, self._told = self._told, change
        if told is not None and (told.from_replicas, told.to_replicas) == (change.from_replicas, change.to_replicas):
            return  # a dry run repeats itself, or Serve has not come round yet
        self.changes.appendleft(change)
        self.num_changes[change.reason] += 1
        self._log.info(
            "decision from=%d to=%d reason=%s mode=%s detail=%r",
            change.from_replicas,
            change.to_replicas,
            change.reason.value,
            self._mode,
            change.detail,
        )

    async def _recall(self) -> ScalingState:
        saved = await self._memory.load()
        if saved is None:
            return ScalingState()
        try:
            state = load_state(saved.decode())
        except ValueError as error:
            self._log.warning("reason=state_not_understood error=%r", str(error))
            return ScalingState()
        self._log.info("reason=state_recalled target=%s", state.target)
        return state

    def _fault(self, error: ActuatorError, before: Fault | None) -> Fault:
        """The fault as it is now; logged when it is another than before."""
        message = str(error)
        if before is not None and before.message == message:
            return before
        self._log.error("reason=scaling_failed error=%r", message)
        return Fault(self._clock(), message)


def _change_of(decision: ScalingDecision, target: int, view: FleetView, *, dry_run: bool) -> Change:
    assert view.replicas is not None
    return Change(view.now_s, view.replicas.target, target, decision.reason, decision.detail, dry_run)
