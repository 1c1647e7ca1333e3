import pytest
import tensorflow as tf
from event_scalars import scalars

from keras_mgpu.monitoring.event_files import EventFile


def test_numbers_come_back_with_their_steps_and_times(tmp_path):
    file = EventFile(str(tmp_path / "run"))
    for step in (1, 2, 3):
        file.scalars({"gpu/power": 10.0 * step, "train/mine": step}, step, 1000.0 + step)
    file.close()
    found = scalars(tmp_path, "run")
    assert [(e.step, e.value, e.wall_time) for e in found["gpu/power"]] == [
        (1, 10.0, 1001.0),
        (2, 20.0, 1002.0),
        (3, 30.0, 1003.0),
    ]
    assert [e.value for e in found["train/mine"]] == [1.0, 2.0, 3.0]


def test_only_the_first_event_of_a_tag_describes_it(tmp_path):
    file = EventFile(str(tmp_path))
    for step in range(3):
        file.scalars({"gpu/power": 1.0}, step, 0.0)
    file.close()
    (path,) = map(str, tmp_path.iterdir())
    events = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(path)]
    texts = [v.metadata.summary_description for e in events for v in e.summary.value]
    assert texts == ["power draw, in W", "", ""]


def test_two_files_of_the_same_second(tmp_path):
    for _ in range(2):
        EventFile(str(tmp_path)).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_was_deleted(tmp_path):
    file = EventFile(str(tmp_path))
    file.flush()
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match="was deleted"):
        file.flush()
