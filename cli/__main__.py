"""Run from the repository: python -m cli COMMAND TARGET."""

# gevent must be patched in before anything opens a socket or starts a thread:
# pyinfra runs every node in a greenlet, and its retries sleep.
from gevent import monkey

monkey.patch_all()

from cli.main import run  # noqa: E402

if __name__ == "__main__":
    run()
