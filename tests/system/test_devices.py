"""Names of devices, and devices that stand in for GPUs."""

import pytest

from keras_mgpu.system import devices as system_devices
from keras_mgpu.system.devices import logical_devices, normalize, resolve, satisfies, short

WORKER = "/job:worker/replica:0/task:1/device:GPU:0"


@pytest.mark.parametrize(
    "spelling", ["/GPU:0", "GPU:0", "gpu:0", "/device:GPU:0", "/job:localhost/device:GPU:0", "/GPU"]
)
def test_one_device_in_every_spelling(spelling):
    assert normalize(spelling) == "/GPU:0"


def test_a_device_of_another_process_keeps_its_full_name():
    assert normalize(WORKER) == WORKER
    assert short(WORKER) == "worker:1/GPU:0"
    assert short("/job:localhost/replica:0/task:0/device:CPU:3") == "CPU:3"
    assert short("") == ""


@pytest.mark.parametrize("name", ["", "first", "/job:worker", ":0"])
def test_not_a_device(name):
    with pytest.raises(ValueError, match="A device must have a name such as"):
        normalize(name)


def test_a_number_is_no_device():
    with pytest.raises(TypeError, match=r"A device must be a string .* Received: device=0"):
        normalize(0)


@pytest.mark.parametrize(
    ("got", "asked", "is_satisfied"),
    [
        (WORKER, "/GPU:0", True),
        (WORKER, "/GPU", True),
        (WORKER, "/GPU:1", False),
        (WORKER, "/CPU:0", False),
        (WORKER, "/job:worker/task:0", False),
        (WORKER, "", True),
        ("/device:GPU:0", "/job:localhost/replica:0/task:0/device:GPU:0", True),
        ("/device:GPU:0", "/job:worker/replica:0/task:0/device:GPU:0", False),
    ],
)
def test_whether_one_got_what_one_asked_for(got, asked, is_satisfied):
    assert satisfies(got, asked) == is_satisfied


def test_devices_that_exist(devices):
    assert resolve(["cpu:1", "/CPU:0", "/CPU:1"]) == ("/CPU:1", "/CPU:0", "/CPU:1")
    assert system_devices.available()[:4] == devices
    assert system_devices.is_there("/CPU:3")
    assert not system_devices.is_there("/CPU:4")


def test_devices_that_do_not_exist():
    message = r"No such device: /CPU:8\. Available devices: /CPU:0, .*logical_devices"
    with pytest.raises(ValueError, match=message):
        resolve(["/CPU:0", "/CPU:8"])


@pytest.mark.parametrize("devices", ["/CPU:0", 2, None])
def test_no_list_of_devices(devices):
    with pytest.raises(TypeError, match="must be a list of device strings"):
        resolve(devices)


def test_what_the_command_line_shows():
    first = system_devices.describe()[0]
    assert (first.name, first.kind, first.memory_bytes) == ("/CPU:0", "CPU", None)


class TestLogicalDevices:
    def test_more_than_there_are_says_when_to_call(self):
        with pytest.raises(RuntimeError, match=r"already started with 4 CPU.*top of the program"):
            logical_devices(9)

    def test_as_many_or_fewer_are_returned(self):
        assert logical_devices(2) == ["/CPU:0", "/CPU:1"]

    @pytest.mark.parametrize("number", [0, -1])
    def test_none(self, number):
        with pytest.raises(ValueError, match="at least 1"):
            logical_devices(number)

    @pytest.mark.parametrize("number", ["2", 2.0, True])
    def test_no_number(self, number):
        with pytest.raises(TypeError, match="integer"):
            logical_devices(number)
