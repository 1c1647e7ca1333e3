"""Every example runs as a reader would run it, and shows what its reader looks for."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def check_demo(output, folder):
    assert "lane 1" in output
    assert "largest relative difference" in output
    assert "NOT SAME" not in output
    assert output.count("alidation accuracy") == 2
    assert "--logdir demo_run" in output
    assert (folder / "demo_run" / "model.keras").is_file()
    assert list((folder / "demo_run" / "logs").glob("**/events.out.tfevents.*"))


def check_large_model(output, folder):
    built, split = output.split("Split, after a step")
    [host] = bytes_by_device(built).values()
    on_host, *on_stages = bytes_by_device(split).values()
    assert on_host == (0, 0)
    assert len(on_stages) == 2
    assert sum(weights for weights, _ in on_stages) == pytest.approx(host[0], abs=0.02)
    for weights, slots in on_stages:
        assert slots == pytest.approx(2 * weights, abs=0.02)


def bytes_by_device(text):
    """The rows such as `CPU:1  0.11 MB  0.23 MB`."""
    rows = [line.split() for line in text.splitlines() if line.endswith("MB")]
    return {row[0]: (float(row[1]), float(row[3])) for row in rows}


def check_functional_skips(output, folder):
    assert "stage 2 reads from [0, 1]" in output
    lines = output.splitlines()
    [start] = [i for i, line in enumerate(lines) if line.startswith("Differences from")]
    rows = [line.split() for line in lines[start + 2 : lines.index("", start)]]
    assert len(rows) == 15
    assert max(float(relative) for _, _, relative in rows) < 1e-4
    assert "mask_accuracy" in output


def check_kill_and_resume(output, folder):
    """The run is whole; killed in the middle, and started again, it ends with the same losses."""
    example = [sys.executable, EXAMPLES / "kill_and_resume.py", "--tiny", "--folder", "again"]
    options = {"cwd": folder, "capture_output": True, "text": True, "timeout": 300}
    killed = subprocess.run([*example, "--die-after", "19"], check=False, **options)
    assert killed.returncode == -9
    resumed = subprocess.run(example, check=True, **options)
    assert f"Going on from {folder}/again/checkpoints/" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == output.splitlines()[-1]
    assert output.splitlines()[-1].startswith("loss of each epoch: ")


def check_placement(output, folder):
    by_hand, split = output.split("The same layers in a pipeline")
    assert "Optimizer slots lie far from their weights: block_1/dense_1" in by_hand
    assert "far from their weights" not in split
    for name in ("by_hand", "split"):
        assert (folder / "placement_run" / name / "placement.json").is_file()
        assert list((folder / "placement_run" / name / "placement").glob("events.out.tfevents.*"))


CHECKS = {
    "demo.py": check_demo,
    "functional_skips.py": check_functional_skips,
    "kill_and_resume.py": check_kill_and_resume,
    "large_model.py": check_large_model,
    "placement.py": check_placement,
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(name, tmp_path):
    assert name in CHECKS, f"Say in CHECKS what a reader of {name} looks for."
    run = subprocess.run(
        [sys.executable, EXAMPLES / name, "--tiny"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    CHECKS[name](run.stdout, tmp_path)


def test_index_names_every_example():
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(CHECKS) if f"]({name})" not in index] == []
