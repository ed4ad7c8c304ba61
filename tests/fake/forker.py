"""Runs one command line after another, each in a process of its own, without importing anew.

Reads requests from standard input, a JSON array a line: the words, the environment to add, and
the files that stdout and stderr go to. Answers each with a line: the exit code. The process is
the one that ``python -m cli`` is, up to where the command line is read; it then forks.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from importlib import import_module  # noqa: E402

import locks.make  # noqa: E402, F401
from cli.main import run  # noqa: E402
from cli.summaries import SUMMARIES, module_of  # noqa: E402

# Else each of them would import what it needs.
for name in SUMMARIES:
    import_module(module_of(name))


def child(words: list[str], env: dict[str, str], out: str, err: str) -> int:
    """Run one command line in this process, and return its exit code."""
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(env)
    program = os.environ.get("PROGRAM")
    sys.argv = ["sglang-node", *words]
    try:
        if program is not None:
            exec(compile(program, "PROGRAM", "exec"), {"__name__": "__main__"})
        else:
            run()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            code = child(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
