"""The peer: the same transformer in torch.distributed.pipelining, a process and a core a stage.

Called by the benchmark with a JSON object; prints one. What is timed is forward and backward over
all micro-batches, without an update of the weights, which is in torch's favour.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.multiprocessing import get_context

PORT = "29533"
NUM_WARM_UP = 2


class Block(nn.Module):
    """Attention and an MLP, each with a residual and a layer normalization behind it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(x, x, x, need_weights=False)
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.mlp(x))


def _blocks(size: dict[str, int], num: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*(Block(size["width"], size["heads"]) for _ in range(num)))


def _batch(size: dict[str, int], batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    shape = (batch, size["tokens"], size["width"])
    return torch.randn(shape), torch.randn(shape)


def _alone(order: dict[str, Any], results: Any) -> None:
    """The same micro-batches one after the other, on one core."""
    _pin(0)
    size, num = order["size"], order["micro_batches"]
    model, loss = _blocks(size, size["blocks"], seed=0), nn.MSELoss()
    x, y = _batch(size, order["batch"])
    seconds = []
    for _ in range(order["num_steps"]):
        model.zero_grad()
        began = time.perf_counter()
        for part_x, part_y in zip(x.chunk(num), y.chunk(num)):
            (loss(model(part_x), part_y) / num).backward()
        seconds.append(time.perf_counter() - began)
    results.put(statistics.median(seconds[NUM_WARM_UP:]))


def _stage(rank: int, order: dict[str, Any], results: Any) -> None:
    _pin(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    size = order["size"]
    module = _blocks(size, size["blocks"] // 2, seed=rank)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=order["micro_batches"], loss_fn=nn.MSELoss())
    x, y = _batch(size, order["batch"])
    seconds = []
    for _ in range(order["num_steps"]):
        module.zero_grad()
        distributed.barrier()
        began = time.perf_counter()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        distributed.barrier()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        results.put(statistics.median(seconds[NUM_WARM_UP:]))
    distributed.destroy_process_group()


def _pin(core: int) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    torch.set_num_threads(1)


def main(order: dict[str, Any]) -> dict[str, float]:
    context = get_context("spawn")
    results = context.Queue()
    if order["way"] == "alone":
        processes = [context.Process(target=_alone, args=(order, results))]
    else:
        processes = [context.Process(target=_stage, args=(r, order, results)) for r in range(2)]
    for process in processes:
        process.start()
    step = results.get()
    for process in processes:
        process.join()
    return {"step": step}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
