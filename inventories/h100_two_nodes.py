"""Two nodes of eight H100 each that serve one model as one: tensor parallel over all sixteen.

The data are the same for both; `nodes` says which runs which rank. Rank 0 alone answers clients.
Both are always in one run: `--limit` with one of them is refused (docs/several_nodes.md).
"""

gpu_nodes = (
    ["h100-a.example.org", "h100-b.example.org"],
    {
        "ssh_user": "root",
        "sglang": {
            "services": [
                {
                    "name": "large",
                    "model": "/raid/models/DeepSeek-V3-0324",  # on each of them
                    "served_name": "deepseek-v3",
                    "output_cap": 16384,
                    "tp_size": 16,
                    "nodes": ["h100-a.example.org", "h100-b.example.org"],
                    "network": "host",  # the ranks reach each other, over InfiniBand where it is
                    # Of h100-a, on the network between the nodes: where its ranks meet.
                    "arguments": {"dist-init-addr": "10.0.0.1:20000"},
                    # The interface of that network, where a node has several.
                    "environment": {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"},
                    "start_limit": 7200.0,  # reading 350 GB from a slow disk takes its time
                },
            ],
            "paths": {"weights": "/raid/hub", "caches": "/raid/cache"},
        },
    },
)
