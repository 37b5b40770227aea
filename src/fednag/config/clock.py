"""The part of an experiment file about time."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Clock(BaseModel):
    """Whose delays a run trains under; without a fleet, time does not reach into training."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    fleet: str | None = None
    deadline: float | None = Field(None, gt=0)
    digest: str | None = None  # of the fleet, filled in when a run begins
