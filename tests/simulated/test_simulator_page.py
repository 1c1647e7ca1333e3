"""What the page about the simulator says is done."""

import re
from pathlib import Path

import keras
import numpy as np
import simgpu

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def test_code_runs():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=False)
    names = {"model": model, "x": np.ones((8, 4)), "y": np.ones((8, 2))}
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(code) > 1
    try:
        for block in code:
            exec(compile(block, PAGE.name, "exec"), names)
    finally:
        simgpu.set_cost()
