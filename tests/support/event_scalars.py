"""Reads back what was written for TensorBoard."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def scalars(folder, run):
    """Every scalar of a run: its events by tag, in the order of steps."""
    events = EventAccumulator(str(folder / run), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def values(folder, run, tag):
    return [event.value for event in scalars(folder, run)[tag]]


def steps(folder, run, tag):
    return [event.step for event in scalars(folder, run)[tag]]


def runs_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())
