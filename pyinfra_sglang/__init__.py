"""pyinfra-sglang, installed as a tool: its packages stand below this one.

In the repository they are plain packages (``from plans.make import make_plan``);
at the top of site-packages such common names would be in everybody's way. So
the wheel carries them here, and this module makes them importable.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command line: the entry point ``sglang-node``."""
    here = str(Path(__file__).resolve().parent)
    if here not in sys.path:
        sys.path.insert(0, here)
    from cli.early import end_at_once

    end_at_once()
    from gevent import monkey

    monkey.patch_all()
    from cli.main import run

    run()
