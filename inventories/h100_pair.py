"""A prefill/decode pair on one node of eight H100: four compute prompts, four generate.

Clients know the door alone, which gives every request to both halves: a long prompt of one client
no longer holds up the answers of others. The cache goes from one half to the other over RDMA where
the node has it. Halves on several nodes are alike, each with an `address` that the others reach, and
a door that names all of them (docs/door.md).
"""

HALF = {
    "model": "/raid/models/Qwen3-235B-A22B-FP8",
    "served_name": "qwen3",
    "output_cap": 16384,
    "tp_size": 4,
    "network": "host",  # the halves reach each other at ports that they choose themselves
    "start_limit": 7200.0,  # reading 240 GB from a slow disk takes its time
}

gpu_nodes = [
    (
        "h100.example.org",
        {
            "ssh_user": "root",
            "sglang": {
                "services": [
                    {
                        **HALF,
                        "name": "prefill",
                        "port": 30000,
                        "gpus": [0, 1, 2, 3],
                        "arguments": {"disaggregation-mode": "prefill"},
                    },
                    {
                        **HALF,
                        "name": "decode",
                        "port": 30001,
                        "gpus": [4, 5, 6, 7],
                        "arguments": {"disaggregation-mode": "decode"},
                    },
                ],
                "door": {
                    "host": "0.0.0.0",
                    "port": 8000,
                    "keys": [{"env": "CLIENT_KEY"}],
                    "wait": 600,  # of a restart of either half
                    "pd_disaggregation": True,
                },
                "paths": {"weights": "/raid/hub", "caches": "/raid/cache"},
            },
        },
    ),
]
