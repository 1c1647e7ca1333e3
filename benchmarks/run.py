"""Runs the benchmarks and writes their results into their READMEs: `make bench`."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from other_load import OtherLoad
from report import write_readme

HERE = Path(__file__).parent
BENCHMARKS = (
    "transformer",
    "other_models",
    "overhead",
    "first_step",
    "prediction",
    "memory",
    "checkpoints",
    "placement",
    "gpu_metrics",
    "strategies",
)
# Runs in the simulator's environment, by `make bench-simulated`.
NEEDS_SIMULATOR = ("simulated",)


def main() -> None:
    arguments = _parse()
    for name in arguments.names or BENCHMARKS:
        began, others = time.perf_counter(), OtherLoad()
        print(f"{name}:", flush=True)
        table = importlib.import_module(f"{name}.benchmark").run(quick=arguments.quick)
        other_cores = others.cores()
        table.show(name)
        took = time.perf_counter() - began
        print(
            f"{name} took {took:.0f} s; other processes used {other_cores:.2f} cores\n", flush=True
        )
        if not arguments.quick:
            write_readme(HERE / name / "README.md", table, other_cores)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--quick", action="store_true", help="few steps, tiny models; leaves the READMEs alone"
    )
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in (*BENCHMARKS, *NEEDS_SIMULATOR):
            known = ", ".join((*BENCHMARKS, *NEEDS_SIMULATOR))
            parser.error(f"no benchmark {name!r}; there are: {known}")
    return arguments


if __name__ == "__main__":
    main()
