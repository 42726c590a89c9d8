"""Settings of the controller's process: its limits of time, and how it reaches Serve. Rules have their own groups."""

from __future__ import annotations

from pydantic import Field

from slo.settings.base import SettingsGroup


class ControllerSettings(SettingsGroup):
    """The process that watches the fleet."""

    answer_timeout_s: float = Field(
        2,
        gt=0,
        description="How long replicas and ingress processes may take to tell their numbers, seconds; never longer "
        "than autoscale.period_s. Who is slower is absent in that period. Measured: 10 ms for two on one machine.",
    )
    serve_timeout_s: float = Field(
        5, gt=0, description="One call of Serve's REST API, seconds. Measured: 10 to 25 ms on one machine."
    )
    stuck_after_s: float = Field(
        60,
        gt=0,
        description="A controller whose loop has not got through a period for this long, and a period more, is "
        "restarted by Serve, seconds.",
    )
    dashboard_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Of Ray's dashboard, whose port has Serve's REST API. Null: the address that the cluster gives.",
    )
    num_cpus: float = Field(0.1, ge=0, description="Ray CPUs reserved by the controller.")
    on_head: bool = Field(
        True,
        description="Runs on the head, where Ray's dashboard is, so that the dashboard's port may stay closed to other "
        "machines. The head then needs CPUs (`ray start --num-cpus` above 0). False: wherever there is room.",
    )
