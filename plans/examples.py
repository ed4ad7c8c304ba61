"""What to write for each key of an inventory that has a list or a mapping: one that is valid."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_HOOK = "{'run': 'lb drain $NODE:$PORT'}"
_SERVICE = "{'name': 'chat', 'model': 'Qwen/Qwen3-8B'}"

EXAMPLES: Mapping[str, str] = MappingProxyType(
    {
        "services": f"[{_SERVICE}]",
        "services[]": _SERVICE,
        "services[].ulimits": "{'memlock': -1}",
        "paths": "{'weights': '/srv/hub'}",
        "registry": "{'mirrors': {'docker.io': 'https://mirror.example.org'}}",
        "registry.mirrors": "{'docker.io': 'https://mirror.example.org'}",
        "registry.insecure": "['registry.example.org:5000']",
        "hub": "{'endpoint': 'https://hub.example.org'}",
        "mirrors": "{'index': 'https://mirror.example.org/simple'}",
        "secrets": "{'hub_token': {'env': 'HF_TOKEN'}}",
        "collect": "{'keep': 3, 'older_than_days': 30}",
        "hooks": f"{{'before_stop': [{_HOOK}]}}",
        "hooks.before_stop": f"[{_HOOK}]",
        "hooks.before_stop[]": _HOOK,
        "hooks.after_verify": "[{'run': 'lb enable $NODE:$PORT'}]",
        "hooks.after_verify[]": "{'run': 'lb enable $NODE:$PORT'}",
    }
)
"""By the key's place, as messages name it; ``[]`` stands for any one of a list."""
