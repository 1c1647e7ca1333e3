"""Every example runs as a reader would run it, and shows what its reader looks for."""

import re
from pathlib import Path

import forks
import pytest

import keras_mgpu as km

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
    rows = [line.split() for line in lines[start + 3 : lines.index("", start)]]
    assert len(rows) == 15
    assert max(float(row[2]) for row in rows) < 1e-4
    assert "mask_accuracy" in output


def run_and_die(name, folder, num_batches):
    """Runs an example that kills itself, and once more in the same folder."""
    example = [EXAMPLES / name, "--tiny", "--folder", "again"]
    killed = forks.run(*example, "--die-after", num_batches, cwd=folder)
    resumed = forks.run(*example, cwd=folder)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    return killed, resumed


def check_kill_and_resume(output, folder):
    """Killed in the middle and started again, it ends with the losses of the whole run."""
    killed, resumed = run_and_die("kill_and_resume.py", folder, 19)
    assert killed.returncode == -9
    assert f"Resuming from {folder}/again/checkpoints/" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == output.splitlines()[-1]
    assert output.splitlines()[-1].startswith("loss of each epoch: ")


def check_placement(output, folder):
    by_hand, hard, split = re.split("Without soft placement|The same layers in a pipeline", output)
    assert "GPU:9" in hard
    assert "Optimizer slots are not on the device of their weights: block_1/dense_1" in by_hand
    assert "far from their weights" not in split
    for name in ("by_hand", "split"):
        assert (folder / "placement_run" / name / "placement.json").is_file()
        assert list((folder / "placement_run" / name / "placement").glob("events.out.tfevents.*"))


def check_mirrored(output, folder):
    run = folder / "mirrored_run"
    assert "accuracy" in output
    assert km.latest_checkpoint(run / "checkpoints") is not None
    assert (run / "logs" / "placement.json").is_file()
    assert list((run / "logs" / "host").glob("events.out.tfevents.*"))


def check_custom_loop(output, folder):
    losses = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("epoch")]
    assert losses == sorted(losses, reverse=True)
    assert (folder / "custom_loop_run" / "logs" / "placement.json").is_file()


def check_custom_loop_resume(output, folder):
    killed, resumed = run_and_die("custom_loop_resume.py", folder, 9)
    assert killed.returncode == -9
    assert "Resuming in epoch 1, batch " in resumed.stdout
    assert resumed.stdout.splitlines()[-1] == output.splitlines()[-1]


def check_multi_worker(output, folder):
    sums = {line.split()[-1] for line in output.splitlines() if "the sum of all weights" in line}
    assert len(sums) == 1
    assert "the mean of metrics over workers" in output
    logs = folder / "multi_worker_run" / "logs"
    assert {path.name for path in logs.glob("worker_*_host")} == {"worker_0_host", "worker_1_host"}


def check_central_storage(output, folder):
    assert float(output.split("accuracy: ")[1].split("%")[0]) > 80


def check_parameter_server(output, folder):
    asynchronous, one_at_a_time = [line.split() for line in output.splitlines() if "%" in line]
    assert asynchronous[0] == "asynchronous"
    assert float(one_at_a_time[-3]) == 0  # Every gradient is fresh.
    for row in (asynchronous, one_at_a_time):
        assert float(row[-1].rstrip("%")) > 50


def check_transformer(output, folder):
    assert "lane 1  .  F0" in output
    # The table of differences from plain Keras: the loss and every gradient. Dropout makes
    # the whole batch differ, so it is the columns of the same micro-batches that must be noise.
    rows = [each.split() for each in re.findall(r"^\S+(?: +\d\.\d\de[+-]\d\d){4}$", output, re.M)]
    assert len(rows) == 20
    assert max(float(row[3]) for row in rows) < 1e-6
    relative = {row[0]: float(row[4]) for row in rows}
    relative.pop("multi_head_attention/key/bias")  # No gradient: attention does not depend on it.
    assert max(relative.values()) < 1e-4
    [(predicted, measured)] = re.findall(r"bubble: predicted (\d+)%, measured (\d+)%", output)
    assert 0 < int(predicted) < 100
    assert 0 <= int(measured) < 100


def check_sweep(output, folder):
    rows = [line.split() for line in output.splitlines()[1:3]]
    assert [row[:2] for row in rows] == [["16", "1"], ["16", "4"]]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")


CHECKS = {
    "central_storage.py": check_central_storage,
    "custom_loop.py": check_custom_loop,
    "custom_loop_resume.py": check_custom_loop_resume,
    "demo.py": check_demo,
    "functional_skips.py": check_functional_skips,
    "kill_and_resume.py": check_kill_and_resume,
    "large_model.py": check_large_model,
    "mirrored.py": check_mirrored,
    "multi_worker.py": check_multi_worker,
    "parameter_server.py": check_parameter_server,
    "placement.py": check_placement,
    "sweep.py": check_sweep,
    "transformer.py": check_transformer,
}
MORE_OPTIONS = {"functional_skips.py": ["--devices", "3"], "multi_worker.py": ["--local"]}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(name, tmp_path):
    assert name in CHECKS, f"Say in CHECKS what a reader of {name} looks for."
    options = ["--tiny", "--devices", "2", *MORE_OPTIONS.get(name, ())]
    run = forks.run(EXAMPLES / name, *options, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    CHECKS[name](run.stdout, tmp_path)


def test_index_names_every_example():
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in sorted(CHECKS) if f"]({name})" not in index] == []
