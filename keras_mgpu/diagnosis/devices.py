"""Check: the devices, what connects them, and how TensorFlow runs them."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from keras_mgpu.blueprint.partition import readable_bytes
from keras_mgpu.diagnosis.machine import Machine
from keras_mgpu.diagnosis.report import OK, UNKNOWN, WARNING, Finding, worst
from keras_mgpu.placements.gpu_links import has_peer_access, link_between
from keras_mgpu.system.devices import describe, kind_of, short
from keras_mgpu.system.gpu_setup import PRIVATE, THREAD_MODE


def check_devices(machine: Machine) -> Finding:
    """Cards, memory, links, peer access, launch threads and memory growth."""
    cards = [_card(each.name, each.description, each.memory_bytes) for each in describe()]
    cards = [card for card in cards if f"/{card['name']}" in machine.devices]
    lines = [_line(card) for card in cards]
    links = [_link(*pair) for pair in machine.pairs if "GPU" in kind_of(pair[0]) + kind_of(pair[1])]
    findings = [
        Finding(OK, tuple(lines), {"devices": cards}),
        judge_links(links),
        judge_launch_threads(machine),
    ]
    data: dict[str, Any] = {}
    for each in findings:
        data.update(each.data)
    status = worst(each.status for each in findings)
    return Finding(status, tuple(line for each in findings for line in each.lines), data)


def _card(name: str, description: str, memory_bytes: int | None) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if kind_of(name) == "GPU":
        gpus = tf.config.list_physical_devices("GPU")
        index = tf.DeviceSpec.from_string(name).device_index
        details = tf.config.experimental.get_device_details(gpus[index])
    capability = details.get("compute_capability")
    return {
        "name": short(name),
        "card": description,
        "memory_bytes": memory_bytes,
        "compute_capability": None if capability is None else ".".join(map(str, capability)),
    }


def _line(card: dict[str, Any]) -> str:
    is_gpu = kind_of(f"/{card['name']}") == "GPU"
    facts = [card["card"] or ("unknown card" if is_gpu else "no GPU")]
    if card["memory_bytes"] is not None:
        facts.append(readable_bytes(card["memory_bytes"]))
    if card["compute_capability"] is not None:
        facts.append(f"compute capability {card['compute_capability']}")
    return f"{card['name']}: {', '.join(facts)}"


def _link(source: str, target: str) -> dict[str, Any]:
    names = {short(each.name): each.name for each in tf.config.list_logical_devices()}
    ends = names[short(source)], names[short(target)]
    return {
        "source": short(source),
        "target": short(target),
        "link": link_between(*ends) or None,
        "peer_access": has_peer_access(*ends),
    }


def judge_links(links: list[dict[str, Any]]) -> Finding:
    """Groups pairs by what connects them: with eight GPUs there are 56."""
    if not links:
        return Finding(UNKNOWN)
    if not any(each["link"] for each in links):
        why = "Links between GPUs are not known: the driver's library did not tell."
        return Finding(UNKNOWN, (why,), {"links": links})
    groups: dict[tuple[str, Any], list[str]] = {}
    for each in links:
        pair = f"{each['source']}→{each['target']}"
        groups.setdefault((each["link"] or "unknown link", each["peer_access"]), []).append(pair)
    words = {True: "with peer access", False: "without peer access", None: "peer access unknown"}
    lines = [f"{link}, {words[peer]}: {' '.join(pairs)}" for (link, peer), pairs in groups.items()]
    is_slow = any(each["peer_access"] is False for each in links)
    if is_slow:
        lines.append("Without peer access, copies between GPUs go through host memory.")
    return Finding(WARNING if is_slow else OK, tuple(lines), {"links": links})


def judge_launch_threads(machine: Machine) -> Finding:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus or not machine.has_gpus_only:
        return Finding(UNKNOWN)
    mode = os.environ.get(THREAD_MODE, "global")
    growth = [bool(tf.config.experimental.get_memory_growth(gpu)) for gpu in gpus]
    data = {"launch_threads": mode, "memory_growth": all(growth)}
    if mode == PRIVATE:
        return Finding(OK, ("Each GPU has launch threads of its own.",), data)
    advice = f"GPUs share their launch threads ({THREAD_MODE}={mode}); {PRIVATE} is often faster."
    return Finding(WARNING, (advice,), data)
