"""One box with one GPU, over SSH: copy it, write its address and the model.

    ./sglang-node plan inventories/one_box.py
    ./sglang-node apply inventories/one_box.py

On the box itself write "@local" in place of the address. What else may be said: inventories/example.py.
"""

gpu_nodes = [
    (
        "gpu-1.example.org",
        {
            "ssh_user": "root",
            "sglang": {
                "services": [
                    {
                        "name": "chat",
                        "model": "Qwen/Qwen3-8B",
                        "output_cap": 8192,
                    },
                ],
            },
        },
    ),
]
