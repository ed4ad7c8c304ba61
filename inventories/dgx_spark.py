"""A DGX Spark: one GB10, whose memory is the machine's own.

The server and the system share 128 GB, so the server's part is said: SGLang would count on all
of what is free when it starts.
"""

gpu_nodes = [
    (
        "spark.example.org",
        {
            "ssh_user": "nvidia",
            "_sudo": True,
            "sglang": {
                "services": [
                    {
                        "name": "chat",
                        "model": "openai/gpt-oss-20b",
                        "output_cap": 16384,
                        "arguments": {"mem-fraction-static": 0.7},
                    },
                ],
            },
        },
    ),
]
