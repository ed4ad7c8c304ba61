"""sglang-router behind the door: a child of door.py, which tells it the rest over standard input.

python3 -I router.py
"""

import json
import sys

from sglang_router.launch_router import launch_router, parse_router_args

MOST_BYTES = 512 * 1024 * 1024  # of a request: as door.py

ROUTER = (
    # It marks a server that fails as down by itself, and the next try goes to another one.
    "--health-check-interval-secs=2",
    "--health-check-timeout-secs=5",
    "--health-failure-threshold=3",
    "--health-success-threshold=1",
    "--retry-max-retries=4",
    "--retry-initial-backoff-ms=50",
    "--retry-max-backoff-ms=400",
    # Open, it would turn requests away for a minute after the server is back.
    "--disable-circuit-breaker",
    "--worker-startup-timeout-secs=10",
    "--worker-startup-check-interval=1",
    f"--max-payload-size={MOST_BYTES}",
    "--shutdown-grace-period-secs=5",
    "--history-backend=none",
    "--log-level=warn",
)

told = json.loads(sys.stdin.buffer.read())
arguments = parse_router_args([*ROUTER, *told["words"]])
arguments.api_key = told["key"]
arguments.control_plane_api_keys = [("door", "door", told["admin"], "admin")]
launch_router(arguments)
