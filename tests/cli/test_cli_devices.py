"""`keras-mgpu devices`."""

import argparse
import json
import sys
import types

import pytest

from keras_mgpu.cli.devices import add_devices
from keras_mgpu.cli.main import main


@pytest.fixture
def three_devices(monkeypatch):
    """Puts devices in place of the real ones, which differ from machine to machine."""

    def device(name, kind, description, memory_bytes):
        return types.SimpleNamespace(
            name=name, kind=kind, description=description, memory_bytes=memory_bytes
        )

    module = types.ModuleType("keras_mgpu.system.devices")
    module.describe = lambda: [
        device("/CPU:0", "CPU", "", None),
        device("/GPU:0", "GPU", "Card [red]of[/red] a long name " + "x" * 100, 16 * 2**30),
        device("/GPU:1", "GPU", "Card", 24 * 2**30),
    ]
    monkeypatch.setitem(sys.modules, "keras_mgpu.system.devices", module)


def test_devices(capsys, three_devices):
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "name    kind    memory  description",
        "/CPU:0  CPU          -",
        "/GPU:0  GPU   16.0 GiB  Card [red]of[/red] a long name " + "x" * 100,
        "/GPU:1  GPU   24.0 GiB  Card",
    ]


def test_devices_json(capsys, three_devices):
    assert main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [device["name"] for device in found] == ["/CPU:0", "/GPU:0", "/GPU:1"]
    assert found[2] == {
        "name": "/GPU:1",
        "kind": "GPU",
        "description": "Card",
        "memory_bytes": 24 * 2**30,
    }
    assert found[0]["memory_bytes"] is None


def test_the_devices_of_this_machine(capsys):
    assert main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "/CPU:0" in [device["name"] for device in found if device["kind"] == "CPU"]


def test_the_command_can_be_added_to_any_parser(three_devices):
    parser = argparse.ArgumentParser()
    add_devices(parser.add_subparsers())
    args = parser.parse_args(["devices"])
    assert args.run(args).startswith("name ")
