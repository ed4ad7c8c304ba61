"""Nodes with L4: a chat model that fits one of them."""

sglang = {
    "release": "0.5.23",  # all nodes of the group serve the same, also when a newer one is there
    "services": [
        {"name": "chat", "model": "Qwen/Qwen3-8B", "output_cap": 8192},
    ],
}
