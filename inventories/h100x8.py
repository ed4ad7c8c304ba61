"""Eight H100 that serve one large model from a local copy, for one application behind a key.

The key is read on this machine when apply runs and lies on the node where root alone reads it;
a door of your own (TLS, keys per client) is better where there are several clients.
"""

gpu_nodes = [
    (
        "h100.example.org",
        {
            "ssh_user": "root",
            "sglang": {
                "services": [
                    {
                        "name": "large",
                        "model": "/raid/models/DeepSeek-V3-0324-AWQ",
                        "served_name": "deepseek-v3",
                        "output_cap": 16384,
                        "tp_size": 8,
                        "address": "10.0.0.8",  # of the network that the application is in
                        "api_key": {"env": "SGLANG_API_KEY"},
                        "start_limit": 7200.0,  # reading 350 GB from a slow disk takes its time
                    },
                ],
                # A large local disk for what is compiled and fetched.
                "paths": {"weights": "/raid/hub", "caches": "/raid/cache"},
            },
        },
    ),
]
