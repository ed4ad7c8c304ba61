"""A box with two L4, and a service on each: a chat model, and the embeddings beside it.

A service is one GPU's here, so that neither takes memory from the other and each restarts alone.
"""

gpu_nodes = [
    (
        "l4-pair.example.org",
        {
            "ssh_user": "root",
            "sglang": {
                "services": [
                    {
                        "name": "chat",
                        "model": "Qwen/Qwen3-8B",
                        "output_cap": 8192,
                        "gpus": [0],
                        "port": 30000,
                    },
                    {
                        "name": "embed",
                        "model": "Qwen/Qwen3-Embedding-4B",
                        "kind": "embed",  # an embedding has no length: no output_cap
                        "gpus": [1],
                        "port": 30001,
                    },
                ],
            },
        },
    ),
]
