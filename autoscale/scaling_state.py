"""What the scaling policy remembers between two calls, and across restarts of the controller: plain values only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from autoscale.capacity import ClassRecord
from autoscale.quiet import QuietTime
from autoscale.starts import StartWatch
from slo.priority import PriorityClass

_NO_RECORDS = tuple(ClassRecord(priority) for priority in PriorityClass)


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Times are sums of watched time, no stamps of a clock: they mean the same after a restart, and on another host."""

    target: int | None = None
    """What was last decided; None before the first decision."""
    last_s: float | None = None
    """When the fleet was last looked at, by the controller's clock; None: not since it started."""
    records: tuple[ClassRecord, ...] = _NO_RECORDS
    """One for each class, the most urgent first."""
    starts: StartWatch = field(default_factory=StartWatch)
    quiet: QuietTime = field(default_factory=QuietTime)
    promised_gone_s: float = 0.0
    """For how long no class with promised targets has asked for anything."""
    differs_s: float = 0.0
    """For how long Serve's target has been above the one decided."""

    def check_invariants(self) -> None:
        """Raises AssertionError unless the state holds together."""
        assert [record.priority for record in self.records] == list(PriorityClass), self.records
        assert min(self.promised_gone_s, self.differs_s) >= 0, self
        self.starts.check_invariants()
        self.quiet.check_invariants()
        for record in self.records:
            record.check_invariants()


_ADAPTER = TypeAdapter(ScalingState)


def dump_state(state: ScalingState) -> str:
    """The state as JSON text."""
    return _ADAPTER.dump_json(state).decode()


def load_state(text: str) -> ScalingState:
    """The state that `dump_state` wrote, for a controller that has just started: its clock is another.

    Raises:
        ValueError: the text is no such state. Nothing is lost then but what was learned: `ScalingState()` takes Serve's
            target for its own.
    """
    state = replace(_ADAPTER.validate_json(text), last_s=None)
    try:
        state.check_invariants()
    except AssertionError as error:
        raise ValueError(f"not a state that holds together: {error}") from None
    return state
