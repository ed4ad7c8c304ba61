"""A fleet of unlike nodes: groups say who is what, group_data/ says what each group serves.

    ./sglang-node plan inventories/fleet/site.py
    ./sglang-node plan inventories/fleet/site.py --limit l4 --exclude l4-3.example.org

A host's data goes over its group's, a group's over all's. Copy the folder into a repository of
your own: paths in it are relative to it, and sglang.lock is made beside this file.
"""

l4 = [
    "l4-1.example.org",
    "l4-2.example.org",
    # Two GPUs: a service on each, in place of the group's one.
    (
        "l4-3.example.org",
        {
            "sglang": {
                "release": "0.5.23",
                "services": [
                    {
                        "name": f"chat-{gpu}",
                        "model": "Qwen/Qwen3-8B",
                        "output_cap": 8192,
                        "gpus": [gpu],
                        "port": 30000 + gpu,
                    }
                    for gpu in (0, 1)
                ],
            },
        },
    ),
]

h100 = ["h100-1.example.org"]

spark = ["spark-1.example.org"]
