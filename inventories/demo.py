"""Six nodes that are not there: recorded surveys, composed from published outputs.

    ./sglang-node plan inventories/demo.py

Needs no GPU, no root and no network: pyinfra's @fake connector answers the one
command that surveys a node with the recording of inventories/demo. What is
printed is what the real planning makes of it, refusals included.
"""

from pathlib import Path

_recordings = Path(__file__).resolve().parent / "demo"

_wanted = {
    "services": [
        {
            "name": "chat",
            "model": "Qwen/Qwen3-8B",
            "output_cap": 8192,
        }
    ],
}


def _node(name):
    lines = (_recordings / f"{name}.survey").read_text(encoding="utf-8").splitlines()
    return (
        f"@fake/{name}",
        {"fake_responses": {"sglang-survey": lines}, "fake_delay": 0, "fake_delay_jitter": 0},
    )


gpu_nodes = (
    [
        _node("two-l4-no-toolkit"),
        _node("dgx-spark"),
        _node("a100-mig"),
        _node("b200-pair"),
        _node("t4"),
        _node("mismatch"),
    ],
    {"sglang": _wanted},
)
