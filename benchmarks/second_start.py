"""Time to the first answer at a second start, with kept kernel caches and with empty ones.

    .venv/bin/python -m benchmarks.second_start [--pairs 5]

A fresh node gets SGLang's CPU build from a mirror on its bridge, by the toolkit itself, and serves
a tiny Command R, of which SGLang compiles a kernel with torch.compile at its first forward (a real
compiler, real code in the build's cache). In alternating pairs the service is stopped and started
again, once with its caches as the last start left them and once emptied; the time is from
`systemctl start` to the first whole answer. On GPUs far more is compiled, so what is kept there is
more: FlashInfer's, DeepGEMM's and Triton's kernels, minutes of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.polling import spread
from tests.node.harness.lab import MODEL, Lab
from tests.node.harness.machine import Node
from tests.node.site import Site, wheel_service

COMPILES = "/srv/models/command-r"
UNIT = "sglang@chat.service"
CURRENT = "/var/lib/sglang/deployments/chat/current"

MAKE = """\
import json, os, shutil, sys
import torch
from transformers import CohereConfig, CohereForCausalLM
source, made = sys.argv[1:]
os.makedirs(made, exist_ok=True)
for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
    shutil.copy(os.path.join(source, name), made)
with open(os.path.join(source, "config.json")) as file:
    words = json.load(file)["vocab_size"]
config = CohereConfig(
    vocab_size=words, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192,
    bos_token_id=0, eos_token_id=0, pad_token_id=0,
)
torch.manual_seed(0)
CohereForCausalLM(config).to(torch.bfloat16).save_pretrained(made)
"""
"""Makes a tiny Command R with the tokenizer of another model."""

ASK = """\
for i in $(seq 3000); do
    curl -sf -m 120 -H 'Content-Type: application/json' http://127.0.0.1:30000/v1/completions \\
        -d '{"model": "tiny", "prompt": "hello", "max_tokens": 8, "ignore_eos": true}' \\
        | grep -q completion_tokens && exit 0
    sleep 0.1
done
exit 1
"""


def place_model(node: Node) -> None:
    """Make the model on the node, with the packages of its service's environment."""
    (name,) = node.run("ls /opt/sglang/environments").stdout.split()
    python = f"/opt/sglang/environments/{name}/bin/python3"
    node.put("/root/make.py", MAKE)
    node.run(f"HOME=/root {python} /root/make.py {MODEL} {COMPILES}", timeout=600)
    # The service has a user of its own.
    node.run(f"chmod a+rx {COMPILES} && find {COMPILES} -type f -exec chmod a+r {{}} +")


def start(node: Node, *, empty: bool) -> float:
    """Start the stopped service, its caches emptied first or kept; return the seconds to an answer."""
    if empty:
        # The build's directory stays: it is the service's, and its home in it.
        node.run(f"cd $(readlink -f {CURRENT}/cache) && find . -mindepth 1 ! -path ./home -delete")
    # So many starts by hand in a row are more than systemd lets a unit have.
    node.run(f"systemctl reset-failed {UNIT} 2>/dev/null || :")
    began = time.monotonic()
    node.run(f"systemctl start --no-block {UNIT}")
    node.run("sh -s", text=ASK, timeout=1200)
    took = time.monotonic() - began
    node.run(f"systemctl stop {UNIT}", timeout=600)
    return took


def compiled(node: Node) -> int:
    """Return how many files of compiled code the service's caches hold."""
    found = node.run(f"find $(readlink -f {CURRENT}/cache) -name '*.so' | wc -l").stdout
    return int(found)


def main() -> None:
    """Run the pairs on one node, and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    lab = Lab()
    try:
        node, mirror = lab.node("bench", tree_name="fresh", gpus="one_l4_580"), lab.mirror
        with tempfile.TemporaryDirectory() as folder:
            served = wheel_service(runtime="wheel", release="0.5.23")
            data = {
                "services": [served],
                "mirrors": mirror.keys,
                "wheel_lock": str(mirror.locks["0.5.23"]),
            }
            site = Site(Path(folder), [node], data)
            # With a lock for CUDA the toolkit sees to it; the lock for the CPU needs none but here.
            node.run("apt-get update -qq && apt-get install -qq -y --no-install-recommends g++")
            assert site.tool("apply", timeout=1800).code == 0
            place_model(node)
            served["model"] = COMPILES
            assert site.tool("apply", timeout=1800).code == 0
            node.run(f"systemctl stop {UNIT}", timeout=600)
            assert compiled(node) > 0, "nothing was compiled: there is nothing to compare"
            measure(node, pairs)
    finally:
        lab.close()


def measure(node: Node, pairs: int) -> None:
    """Run the pairs; which of both comes first alternates too."""
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2 == 0:
            cold = start(node, empty=True)
            kept = start(node, empty=False)
        else:
            kept = start(node, empty=False)
            cold = start(node, empty=True)
        found.append((kept, cold))
        print(
            f"pair {number + 1}: first answer after {kept:.1f} s with kept caches, {cold:.1f} s with "
            f"empty ones, {kept / cold:.2f} times; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    kept_, cold_ = (statistics.median(values) for values in zip(*found, strict=True))
    print(
        f"with kept caches the first answer takes {spread([one / other for one, other in found])} "
        f"times as long as with empty ones (median, lowest and highest of {pairs} pairs); "
        f"{kept_:.1f} s against {cold_:.1f} s"
    )


if __name__ == "__main__":
    main()
