"""The way from a `PipelineSplit` to the model inside it, for what works with either."""

from __future__ import annotations

from typing import Any


def is_split(model: Any) -> bool:
    """Whether a model is a `PipelineSplit`.

    It is known by what it carries: to ask for its class would load everything that trains it.
    """
    return hasattr(model, "plan") and hasattr(model, "schedule")


def unsplit(model: Any) -> Any:
    """The user's own model, if `model` is a `PipelineSplit` around it."""
    return model.model if is_split(model) else model
