"""Access to the model inside a `PipelineSplit`, for code that works with either."""

from __future__ import annotations

from typing import Any


def is_split(model: Any) -> bool:
    """Whether a model is a `PipelineSplit`.

    It is recognized by its attributes, because importing its class would load the whole pipeline.
    """
    return hasattr(model, "plan") and hasattr(model, "schedule")


def unsplit(model: Any) -> Any:
    """Returns the model inside a `PipelineSplit`, and any other model unchanged."""
    return model.model if is_split(model) else model
