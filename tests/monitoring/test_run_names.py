from keras_mgpu.monitoring.run_names import device_run, gpu_run, worker_prefix


def test_names():
    assert gpu_run(3) == "gpu_3"
    assert device_run("/GPU:3") == "gpu_3"
    assert worker_prefix("worker:1") + gpu_run(0) == "worker_1_gpu_0"
