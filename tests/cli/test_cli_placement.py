"""`keras-mgpu placement`."""

import argparse
import json

import pytest

from keras_mgpu.cli.main import main
from keras_mgpu.cli.placement import add_placement
from keras_mgpu.placements.report import FILE_NAME, PlacementReport
from keras_mgpu.placements.report_parts import LayerPlacement

FULL = PlacementReport(
    "net",
    layers=tuple(
        LayerPlacement(path, "Dense", got=((device,),), num_ops=3)
        for path, device in (("first", "GPU:0"), ("in/second", "GPU:1"))
    ),
)


def test_tables_and_json(tmp_path, capsys):
    (tmp_path / FILE_NAME).write_text(FULL.to_json())
    other = tmp_path / "other.json"
    other.write_text(PlacementReport("net", layers=FULL.layers[:1]).to_json())
    assert main(["placement", str(tmp_path)]) == 0
    assert "in/second" in capsys.readouterr().out
    assert main(["placement", str(tmp_path), "--json"]) == 0
    assert PlacementReport.from_json(capsys.readouterr().out) == FULL
    assert main(["placement", str(tmp_path), str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No differences.\n"
    assert main(["placement", str(tmp_path), str(other)]) == 0
    assert "in/second" in capsys.readouterr().out
    assert main(["placement", str(tmp_path), str(other), "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert {"where": "in/second", "what": "gone", "before": "", "after": ""} in changes


def test_the_command_can_be_added_to_any_parser(tmp_path):
    (tmp_path / FILE_NAME).write_text(FULL.to_json())
    parser = argparse.ArgumentParser()
    add_placement(parser.add_subparsers())
    args = parser.parse_args(["placement", str(tmp_path)])
    assert "in/second" in args.run(args)


@pytest.mark.parametrize("content", [None, "{", '{"version": 9, "warnings": []}'])
def test_a_file_that_is_not_a_report(tmp_path, capsys, content):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit) as caught:
        main(["placement", str(path)])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert len(error.splitlines()) == 1
