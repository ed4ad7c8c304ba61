"""Run from the repository: python -m cli COMMAND TARGET."""

from cli.early import end_at_once

end_at_once()

# gevent must be patched in before anything opens a socket or starts a thread:
# pyinfra runs every node in a greenlet, and its retries sleep.
from gevent import monkey  # noqa: E402

monkey.patch_all()

from cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
