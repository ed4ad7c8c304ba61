"""DGX Sparks, for small loads of a mid-sized model."""

ssh_user = "nvidia"
_sudo = True

sglang = {
    "services": [
        {
            "name": "chat",
            "model": "openai/gpt-oss-20b",
            "output_cap": 16384,
            "arguments": {"mem-fraction-static": 0.7},
        },
    ],
}
