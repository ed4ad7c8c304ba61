"""Nodes with eight H100: two servers of a model that takes four."""

sglang = {
    "release": "0.5.23",
    "services": [
        {
            "name": f"large-{part}",
            "model": "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
            "output_cap": 16384,
            "tp_size": 4,
            "gpus": list(range(4 * part, 4 * part + 4)),
            "port": 30000 + part,
        }
        for part in (0, 1)
    ],
}
