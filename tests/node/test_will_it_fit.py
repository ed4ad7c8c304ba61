"""Will it fit: an operator copies a model to a node with one L4 and looks before loading it.

Nothing is started here: what a plan says comes from the node's own files and the played GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .harness.machine import Node
from .site import Site, service

PATH = "/srv/copied/llama-8b"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
GIB = 1 << 30


@pytest.fixture(scope="module")
def node(node_factory: Callable[..., Node]) -> Iterator[Node]:
    """A host with one L4 whose model directory is large and empty: its files are holes."""
    node = node_factory("fits")
    node.run(f"mkdir -p {PATH}")
    node.put(f"{PATH}/config.json", json.dumps(CONFIG))
    yield node
    node.discard()


def planned(node: Node, folder: Path, *services: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return how the plan of these services ended, and what it says of the node."""
    ran = Site(folder, [node], {"services": list(services)}).tool("plan", "--json")
    (said,) = ran.document["nodes"]
    return ran.code, said


def on_gpu(**keys: Any) -> dict[str, Any]:
    return service(**{"model": PATH, "arguments": {}, "release": None, **keys})


def codes(said: dict[str, Any]) -> list[str]:
    return [refusal["code"] for refusal in said["refusals"]]


def test_a_model_that_is_larger_than_the_gpu_is_refused_before_it_loads(
    node: Node, tmp_path: Path
) -> None:
    node.run(f"truncate -s {30 * GIB} {PATH}/model.safetensors")
    code, said = planned(node, tmp_path, on_gpu())
    assert (code, codes(said)) == (3, ["DOES_NOT_FIT"])
    assert said["refusals"][0]["needed"] == "30.0 GiB for the weights alone on each GPU"
    assert "quantised" in said["refusals"][0]["advice"]


def test_its_quantised_form_fits_and_the_plan_has_the_sum(node: Node, tmp_path: Path) -> None:
    node.run(f"truncate -s {8 * GIB} {PATH}/model.safetensors")
    code, said = planned(node, tmp_path, on_gpu(arguments={"mem-fraction-static": 0.85}))
    assert (code, codes(said)) == (0, [])
    (line,) = [reason for reason in said["reasons"] if reason.startswith("weights")]
    assert "weights 8.0 GiB (the sizes of *.safetensors) over 1 GPU of 22.5 GiB" in line
    assert "8 KV heads × (128 + 128) × 32 layers × 2 B" in line
    assert "tokens in the pool at mem-fraction-static 0.85" in line


def test_two_services_share_the_gpu_once_each_says_its_share(node: Node, tmp_path: Path) -> None:
    both = [on_gpu(), on_gpu(name="second", port=30001)]
    code, said = planned(node, tmp_path, *both)
    assert (code, set(codes(said))) == (3, {"GPU_SHARED_WITHOUT_SHARE"})
    for one in both:
        one["arguments"] = {"mem-fraction-static": 0.42}
    code, said = planned(node, tmp_path, *both)
    assert (code, codes(said)) == (0, [])
    assert any("0.42 + 0.42 = 0.84" in reason for reason in said["reasons"])


def test_a_directory_that_lost_its_config_is_no_model(node: Node, tmp_path: Path) -> None:
    node.run(f"mv {PATH}/config.json {PATH}/config.json.part")
    code, said = planned(node, tmp_path, on_gpu())
    assert (code, codes(said)) == (3, ["MODEL_INCOMPLETE"])
