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
                    "silence_limit": 900.0,  # seconds a start may neither log nor read
                    "start_limit": 3600.0,  # seconds that the longest start takes
                    "shm_size": "32g",
                    "ulimits": {"memlock": -1, "stack": 67108864, "nofile": 1048576},
                    "network": "bridge",  # or host, for RDMA: sglang-node explain HOST_NETWORK
                    "read_only": True,  # the container's root file system
                    # Names of the nodes that serve it as one, rank 0's first; docs/several_nodes.md
                    "nodes": [],
                    # These stand here or, for all services of a node, one level up.
                    "release": None,  # "0.5.23"; None is the newest that the node can run
                    "image": None,  # of that release, in a registry of yours
                    # How SGLang gets onto the node: image (Docker), wheel (Python packages in an
                    # environment of its own: a driver of 580 or newer is enough), or auto, which
                    # None is: the image where Docker and NVIDIA's toolkit are whole, else the wheel
                    # where it can work. A service that is deployed keeps its runtime while that
                    # can work; the plan says which was taken, why, and what the other would need.
                    "runtime": None,
                    # A lock of Python packages of yours in a release's place, on this machine;
                    # relative to this file. It is checked as a release's own is.
                    "wheel_lock": None,  # "wheels/0.5.23-x86_64.txt"
                },
            ],
            "paths": {
                "weights": "/var/lib/sglang/hub",
                "caches": "/var/cache/sglang",
            },
            "registry": {
                # {"docker.io": "https://mirror.example.org"}: the lock is made from it, and nodes
                # pull from it by digest
                "mirrors": {},
                "insecure": [],  # registries that speak plain HTTP
            },
            "hub": {
                "endpoint": None,  # of a mirror of the model hub
                "parallel": 8,  # files that a node reads from it at once
            },
            # Where nodes and this machine get what the wheel runtime is made of: addresses
            # without user or password; None is what uv asks by itself.
            "mirrors": {
                "index": None,  # of Python packages, as UV_DEFAULT_INDEX
                # FlashInfer's precompiled kernels: what `flashinfer install-cubin-wheel
                # --dry-run` prints, or your mirror of it; None: they are compiled on the node
                "flashinfer": None,
                "python": None,  # builds of Python, as UV_PYTHON_INSTALL_MIRROR
                "python_downloads": None,  # their list, as UV_PYTHON_DOWNLOADS_JSON_URL
            },
            # One sglang-router before this node's servers: the address and the keys that clients
            # know. Servers then listen on loopback, and requests wait here while one restarts:
            # {
            #     "host": "0.0.0.0", "port": 8000,
            #     "keys": [{"env": "SGLANG_DOOR_KEY"}],  # any of them lets a client in
            #     # HTTPS, with files of the node, as certbot writes them; a renewed one is taken
            #     # without a restart. "name": what clients call the door, or None
            #     "tls": {"certificate": "/etc/letsencrypt/live/X/fullchain.pem",
            #             "key": "/etc/letsencrypt/live/X/privkey.pem", "name": None},
            #     "wait": 60.0,  # seconds that a request waits for a server, then 503
            #     "servers": [],  # all services here; or names, and http://HOST:PORT of others
            #     "pd_disaggregation": False,  # True: they are halves of prefill/decode pairs
            #     "policy": "cache_aware",  # or round_robin, power_of_two, random
            #     "lock": None,  # a lock of its packages of yours
            # }
            "door": None,
            "jit_cache": "auto",  # or required: refuse where those kernels are not locked
            "secrets": {
                "hub_token": None,  # of gated models: {"env": "HF_TOKEN"}, or a file or command
            },
            "collect": {  # what `sglang-node collect` leaves, beside what the services need
                "keep": 3,  # newest deployments of each service, whatever their age
                "older_than_days": 30,  # of the rest goes what was of no use for so long
            },
            "forward_compat": False,  # sglang-node explain FORWARD_COMPAT
            "cu129_override": False,  # sglang-node explain CU129_OVERRIDE
            "unsupported": False,  # go on where the operating system is not a supported one
            # Let systemd reload though other containers lose their GPUs by it (explain
            # LEGACY_GPU_CONTAINERS).
            "allow_daemon_reload": False,
            # Of hosts with the same value of this key (data of a host: "rack": "r12", or a pool of
            # replicas) no two are in one batch of upgrade, apply --batch or restart --batch.
            "spread": None,
            # How many nodes start at once whose models lie on one network file system (NFS,
            # Lustre): apply and upgrade go in batches where it would be more. None: all.
            "shared_starts": None,
            # Your own commands around a stop, for a load balancer: a line of shell, told NODE,
            # SERVICE, PORT and RELEASE in its environment. One that fails before a stop stops
            # that node before it. A command may run twice for one change.
            #     "before_stop": [{"run": "lb drain $NODE:$PORT", "on": "controller", "limit": 60}]
            # on: controller (this machine) or node; limit: seconds
            "hooks": {"before_stop": [], "after_verify": []},
        },
    },
)
