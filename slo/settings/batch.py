"""Settings of files and batches: OpenAI's batch API, whose lines run as P2. docs/batch.md tells the rules."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from slo.settings.base import SettingsGroup


class BatchSettings(SettingsGroup):
    """Where files and batches are kept, how much of them, and how many lines run at once."""

    enabled: bool = Field(True, description="False: no files, no batches; their paths answer 404.")
    path: str | None = Field(
        None,
        pattern=r"^/.*[^/]$",
        description="Absolute path of the SQLite database, on the machine where the owner of the batches runs (see "
        "on_head). Null: expresslane/batches.sqlite3 in $XDG_DATA_HOME, or in ~/.local/share.",
    )
    database_url: str | None = Field(
        None,
        pattern=r"^postgresql(\+psycopg)?://",
        description="A PostgreSQL database instead, `postgresql://user@host/name`; needs the extra `postgresql`. Leave "
        "the password to ~/.pgpass or PGPASSWORD: settings are no place for it.",
    )
    max_file_bytes: int = Field(
        200 * 10**6, ge=1, description="Of an uploaded file, bytes. Source: OpenAI's limit of a batch's input, 200 MB."
    )
    max_lines: int = Field(50_000, ge=1, description="Lines of one batch. Source: OpenAI's limit.")
    max_tenant_bytes: int = Field(
        10 * 2**30,
        ge=1,
        description="Files and results that one tenant may hold, bytes. Results of a batch that runs are kept beyond "
        "it; then nothing more is taken until something is deleted.",
    )
    max_open_batches: int = Field(100, ge=1, description="Batches of one tenant that have not ended.")
    max_in_flight: int | None = Field(
        None,
        ge=1,
        description="Lines in flight for each running replica, at most. Null: in_flight_ratio of engine.max_num_seqs.",
    )
    in_flight_ratio: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Run slots that lines may fill, as a share of them; at least one. Below 1, so that an urgent "
        "request mostly finds a free slot, and nothing has to be preempted for it.",
    )
    max_attempts: int = Field(
        3,
        ge=1,
        description="How often a line is tried that an engine failed, or was lost with; each try is asked again "
        "elsewhere as faults.max_attempts says. A line that is refused for load is tried until the batch expires.",
    )
    output_retention_s: float = Field(
        30 * 86_400,
        gt=0,
        description="Output and error files go by themselves after this, seconds; a batch may set its own. Source: "
        "OpenAI's 30 days.",
    )
    lock_timeout_s: float = Field(
        10,
        gt=0,
        description="How long a new owner waits at once for a former one to let go of the database, seconds. Then it "
        "stands by: it answers 503 and tries again.",
    )
    num_cpus: float = Field(0.1, ge=0, description="Ray CPUs reserved by the owner.")
    on_head: bool = Field(
        True,
        description="The owner runs on the cluster's head, where the database's file is then. False: wherever there is "
        "room, for PostgreSQL or a shared file system.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.path is not None and self.database_url is not None:
            raise ValueError(f"path={self.path!r} and database_url: files and batches have one place; set one of them")
        return self

    def max_lines_in_flight(self, slots: int, num_replicas: int) -> int:
        """Lines in flight with so many replicas, each of so many run slots. With none there is one: it wakes one."""
        of_replica = self.max_in_flight or max(1, int(slots * self.in_flight_ratio))
        return of_replica * max(1, num_replicas)
