"""What each command does, in a line: all that ``--help`` needs, and so nothing heavy is imported.

A test holds them against the commands' own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SUMMARIES: Mapping[str, str] = MappingProxyType(
    {
        "survey": "Read what each node is, in one round trip; change nothing.",
        "lock": "Ask registry, hub and FlashInfer's index once: digests, commits, hashes; write sglang.lock.",
        "plan": "Show what apply would do to each node, and why; change nothing.",
        "apply": "Make each node serve what it shall, then verify by a real generation.",
        "verify": "Prove that each service answers: one ordinary generation whose text is read.",
        "status": "One line per service: release, runtime, state, since when, drift.",
        "history": "What was deployed: number, release, image, build, when, how it went, and why it was made.",
        "rollback": "Go back to the previous deployment, or a named one: a restart, with nothing fetched; then verify.",
        "restart": "Restart services: requests in flight are finished first; then verify.",
        "stop": "Stop services: requests in flight are finished first.",
        "explain": "Say what a refusal or finding means: what was seen, why it matters, ways out, sources.",
        "remove": "Take away what the toolkit put there; keep weights, drop-ins and records unless asked.",
        "bundle": "Make one archive of what a node's services need, for nodes without a network.",
        "collect": "Take old deployments away, with their kernel caches, environments, Pythons and images.",
        "drain": "Stop the services of nodes for a reboot: requests in flight are finished first; then verify.",
        "upgrade": "Go to another release, batch by batch: prove it harder than ready, watch it, and go back by itself where it is worse.",
        "adopt": "Make the inventory of what serves SGLang on a node by hand, and plan from there; change nothing.",
    }
)

_ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "plan": "cli.planning",
        "apply": "cli.planning",
        "history": "cli.history",
        "rollback": "cli.rollback",
        "bundle": "cli.bundle",
        "collect": "cli.collect",
        "drain": "cli.maintenance",
        "upgrade": "cli.upgrade",
        "adopt": "cli.adopt",
    }
)


def module_of(command: str) -> str:
    """Return the module that holds a command, under the command's own name.

    A start takes as long as what it imports: no command waits for the modules of another.
    """
    return _ELSEWHERE.get(command, "cli.commands")
