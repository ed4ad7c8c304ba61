"""Lock the packages of the door: writes `releases/door/<version>-<architecture>.txt`.

    python -m releases.tools.lock_door [--as-of TIME]

Asks uv, for x86_64 and aarch64, what the sglang-router of `releases/door/__init__.py` resolves to,
as far as the index held it at TIME (now, where none is given). Only metadata is fetched. A lock that
fails its checks is not written, nor the one of the other architecture. Commit what it writes.

Exit codes: 0 done; 1 uv failed; 2 wrong usage; 3 a lock is refused.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence

from releases.door import (
    FOLDER,
    GLIBC,
    PYTHON,
    ROUTER,
    VERSION,
    door_problems,
    door_text,
    lock_name,
)
from releases.tools import resolution
from releases.tools.lock_wheels import Uv, UvFailed, moment, say, tell, write_beside
from releases.tools.resolution import CannotLock, Question, Target
from releases.wheels.checks import disagreements
from releases.wheels.records import ARCHITECTURES, WheelLock


def make(uv: Uv, architecture: str, as_of: str) -> WheelLock:
    """Return the lock for one architecture, as the index held it at AS_OF.

    Raise UvFailed where uv finds no solution, CannotLock where a package has no usable wheel.
    """
    target = Target(PYTHON, GLIBC, architecture)
    say(f"{ROUTER} {VERSION} {architecture}: asking uv, as of {as_of}")
    answer, _ = uv.resolve(Question((f"{ROUTER}=={VERSION}",)), target, as_of=as_of)
    packages, without = resolution.chosen(answer, target)
    if without:
        raise CannotLock(f"no wheel for this platform: {', '.join(without)}")
    return WheelLock(
        release=VERSION,
        architecture=architecture,  # type: ignore[arg-type]  # pydantic checks it
        python=PYTHON,
        glibc=GLIBC,
        device="cpu",
        as_of=as_of,
        uv=uv.version,
        packages=tuple(packages),
    )


def main(given: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    head, _, rest = (__doc__ or "").partition("\n\n")
    out = argparse.ArgumentParser(
        "python -m releases.tools.lock_door",
        description=head,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    out.add_argument("--as-of", type=moment, default=now, metavar="TIME")
    as_of = out.parse_args(given).as_of
    try:
        uv = Uv.found()
        made = [make(uv, architecture, as_of) for architecture in ARCHITECTURES]
    except (UvFailed, CannotLock) as error:
        say(str(error))
        return 1
    wrong = [problem for one in made for problem in door_problems(one)] + disagreements(made)
    if wrong:
        tell(wrong)
        return 3
    for one in made:
        path = FOLDER / lock_name(one.architecture)
        write_beside(path, door_text(one))
        print(f"{path.name}: {len(one.packages)} packages, {one.size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
