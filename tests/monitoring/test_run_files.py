from event_scalars import runs_in, scalars, values

from keras_mgpu.monitoring.run_files import RunFiles
from keras_mgpu.system.cluster import Workers


def test_a_file_per_run(tmp_path):
    files = RunFiles(str(tmp_path), Workers(), ["gpu/power"])
    files.write("gpu_0", {"gpu/power": 1.0}, 1, 0.0)
    files.write("host", {"train/step_time": 2.0}, 1, 0.0)
    files.flush()
    files.close()
    assert runs_in(tmp_path) == ["gpu_0", "host"]
    assert values(tmp_path, "gpu_0", "gpu/power") == [1.0]


def test_each_of_several_workers_has_its_own(tmp_path):
    files = RunFiles(str(tmp_path), Workers(1, ("worker:0", "worker:1")), [])
    files.write("gpu_0", {"gpu/power": 1.0}, 1, 0.0)
    files.close()
    assert runs_in(tmp_path) == ["worker_1_gpu_0"]


def test_one_that_fails_does_not_stop_the_others(tmp_path, caplog):
    (tmp_path / "gpu_0").write_text("in the way")
    files = RunFiles(str(tmp_path), Workers(), [])
    for step in (1, 2):
        files.write("gpu_0", {"gpu/power": 1.0}, step, 0.0)
        files.write("gpu_1", {"gpu/power": 1.0}, step, 0.0)
    files.close()
    assert len(scalars(tmp_path, "gpu_1")["gpu/power"]) == 2
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("Stopped logging gpu_0: ")
