"""An inventory to copy: two nodes, and everything that can be said of them.

    ./sglang-node plan inventories/site.py
    ./sglang-node apply inventories/site.py

It is an inventory of pyinfra: ssh_user, ssh_key, ssh_port and _sudo are its
own keys. What the nodes shall serve stands under "sglang"; the key may also
stand in group_data/all.py, or with a single host.
"""

gpu_nodes = (
    ["gpu-1.example.org", "gpu-2.example.org"],
    {
        "ssh_user": "root",
        "sglang": {
            # One sglang serve under systemd each.
            "services": [
                {
                    "name": "chat",  # sglang@chat.service
                    "model": "Qwen/Qwen3-8B",  # or a path on the node: /srv/models/qwen3-8b
                    "output_cap": 8192,  # longest answer, in tokens; a stop's deadline counts on it
                    # All below may be left out; these are the defaults.
                    "revision": None,  # of a hub model: branch, tag or commit; None is main
                    "served_name": None,  # the model's name for clients; None is the model itself
                    "kind": "generate",  # or embed, or rerank
                    "port": 30000,
                    "address": "127.0.0.1",  # this node alone
                    "tp_size": 1,  # GPUs that share the model
                    "gpus": "all",  # or [0, 1], or ["GPU-…"], or one ["MIG-…"]
                    "arguments": {},  # of sglang serve: {"mem-fraction-static": 0.85}
                    "environment": {},  # of the server
                    # Where the server's own keys are, never what they are: {"env": "NAME"},
                    # {"file": "/path"} or {"command": ["pass", "show", "sglang/key"]}, read on
                    # the controller. SGLang gives them away: sglang-node explain KEY_IN_SERVER
                    "api_key": None,
                    "admin_api_key": None,
                    "tokens_per_second": 20.0,  # the slowest rate of one request
                    "queue_wait": 60.0,  # seconds a request may wait in the queue
                    "silence_limit": 900.0,  # seconds a start may make no progress
                    "start_limit": 3600.0,  # seconds that the longest start takes
                    "shm_size": "32g",
                    "ulimits": {"memlock": -1, "stack": 67108864, "nofile": 1048576},
                    "network": "bridge",  # or host, for RDMA: sglang-node explain HOST_NETWORK
                    "read_only": True,  # the container's root file system
                    # These stand here or, for all services of a node, one level up.
                    "release": None,  # "0.5.23"; None is the newest that the node can run
                    "image": None,  # of that release, in a registry of yours
                    "runtime": None,  # auto, image or wheel
                },
            ],
            "paths": {
                "weights": "/var/lib/sglang/hub",
                "caches": "/var/cache/sglang",
            },
            "registry": {
                "mirrors": {},  # {"docker.io": "https://mirror.example.org"}
                "insecure": [],  # registries that speak plain HTTP
            },
            "hub": {
                "endpoint": None,  # of a mirror of the model hub
                "parallel": 8,  # files that a node reads from it at once
            },
            "secrets": {
                "hub_token": None,  # of gated models: {"env": "HF_TOKEN"}, or a file or command
            },
            "forward_compat": False,  # sglang-node explain FORWARD_COMPAT
            "cu129_override": False,  # sglang-node explain CU129_OVERRIDE
            "unsupported": False,  # go on where the operating system is not a supported one
            # Let systemd reload though other containers lose their GPUs by it (explain
            # LEGACY_GPU_CONTAINERS).
            "allow_daemon_reload": False,
        },
    },
)
