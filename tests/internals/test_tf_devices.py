"""Devices and other processes, as far as TensorFlow knows them."""

from keras_mgpu.internals import tf_devices


def test_the_devices_of_this_process():
    """As drivers know them: logical devices are parts of one."""
    found = tf_devices.local_devices()
    assert [each.device_type for each in found].count("CPU") == 1
    assert all(each.memory_limit > 0 for each in found)


def test_without_a_cluster_nobody_is_called_dead():
    assert not tf_devices.is_unreachable("/job:worker/replica:0/task:1")
