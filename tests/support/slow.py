"""Which tests take long: `make test` starts them first, `make quick` leaves most of them out."""

# By file, the longest first: parts of the names of the tests that `make quick` runs all the same.
FILES = {
    # Several processes that wait for one another, or for TensorFlow to notice that one is gone.
    "test_strategies.py": ("table_of_the_docs", "used_twice", "test_fit[no strategy]"),
    "checkpoints/test_faults.py": ("flip-state.json",),
    "checkpoints/test_checkpoint_strategies.py": (),
    "checkpoints/test_topologies.py": (),
    "test_examples.py": ("index_names",),
    "callbacks/test_gpu_metrics_processes.py": (),
    "placements/test_placement_strategies.py": (),
    "cli/test_cli_check.py": ("bad_use", "something_is_wrong"),
    # TensorFlow waits ten seconds for memory before it gives up; or commands, and new processes.
    "simulated/test_memory_alone.py": (),
    "simulated/test_errors_in_steps.py": (),
    "simulated/test_check.py": ("by_default",),
    "simulated/test_prepare_gpus.py": ("each_gpu_gets",),
    # Models that take long to trace or to compile.
    "pipeline/test_xla.py": ("compile_can_ask",),
    "test_applications.py": (),
    "test_docs.py": ("links", "api_page", "keras-mgpu", "make"),
    # Many of a kind.
    "test_transparency.py": (
        "[dense-",
        "[two_outputs-zero_bubble]",
        "[mask_attention-1f1b]",
        "[coupled_loss-1f1b]",
        "[sample_weight-",
        "[custom_loss-",
        "[adamw-",
    ),
    "simulated/test_copies.py": ("[dense", "integers"),
    "pipeline/test_keras_api.py": ("data[arrays]", "OwnObjects", "compile_settings"),
    "placements/test_device_placement_logger.py": (),
    "placements/test_moved_ops.py": (),
    "diagnosis/test_exactness.py": ("[1.5-failed]",),
    "diagnosis/test_workload.py": ("tried_once",),
    "checkpoints/test_resume.py": ("can_be_turned_off",),
    "callbacks/test_distributed_checkpoint.py": ("batches_are_counted", "directory_that_is_a_file"),
    "pipeline/test_state_flow.py": ("one_micro_batch", "warning_names", "[gpipe-4]"),
}


def file_of(item):
    """The entry of `FILES` that a test is in, or `None`."""
    return next((file for file in FILES if item.path.as_posix().endswith(f"/tests/{file}")), None)


def longest_first(items):
    """Sorts tests, in place; those of a file stay in their order."""
    places = {file: place for place, file in enumerate(FILES)}
    items.sort(key=lambda item: places.get(file_of(item), len(places)))


def is_quick(item):
    file = file_of(item)
    return file is None or any(part in item.nodeid for part in FILES[file])
