"""Which worker this process is: what TF_CONFIG may say, and who saves what."""

import pytest
import tensorflow as tf

from keras_mgpu.system.cluster import Workers, check_tf_config, is_unreachable, workers_of


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("worker 0 of 2", "TF_CONFIG is not valid JSON"),
        ("[]", "TF_CONFIG has the wrong structure"),
        ('{"task": {"type": "worker", "index": 0}}', "TF_CONFIG has no 'cluster'"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
            "as a 'chief', but the cluster has none",
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}',
            "as worker 2, but the cluster has only 2",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}',
            "has no 'index'",
        ),
        (
            '{"cluster": {"worker": "a:1,b:1"}, "task": {"type": "worker", "index": 0}}',
            "a list of addresses for each job",
        ),
        (
            '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}}',
            "the same address twice",
        ),
        (
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0.7}}',
            "a task index that is not an integer",
        ),
        (
            '{"cluster": {"worker": ["a:99999"]}, "task": {"type": "worker", "index": 0}}',
            "not of the form host:port",
        ),
        (
            '{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}',
            "not of the form host:port",
        ),
    ],
)
def test_a_tf_config_that_cannot_be_right(monkeypatch, config, message):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match=message):
        check_tf_config()


@pytest.mark.parametrize(
    "config",
    [
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "0"}}',
        '{"cluster": {"worker": ["10.0.0.1:1","[::1]:2"]}, "task": {"type": "worker", "index": 1}}',
        '{"cluster": {"ps": ["a:1"], "chief": ["b:1"]}, "task": {"type": "ps", "index": 0}}',
    ],
    ids=["index as text", "addresses of both kinds", "other jobs"],
)
def test_a_tf_config_that_tensorflow_takes(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    check_tf_config()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.task_type in resolver.cluster_spec().jobs


def test_a_process_without_a_cluster_is_alone():
    assert workers_of(tf.distribute.get_strategy()) == Workers(index=0, names=("worker:0",))
    assert Workers().is_first
    assert Workers().count == 1


def test_workers_share_variables_without_asking_one_another():
    """By bytes: one large variable, or several small ones."""
    sizes = [("small", 10), ("large", 100), ("medium", 40), ("other", 45)]
    names = ("worker:0", "worker:1")
    shares = [Workers(index, names).share(sizes) for index in range(2)]
    assert shares == [["large"], ["other", "medium", "small"]]
    assert Workers().share(sizes) == ["large", "other", "medium", "small"]


def test_a_worker_that_nobody_has_heard_of_is_not_called_dead():
    assert not is_unreachable("worker:1")
