"""Lock the Python packages of releases: writes `releases/wheels/<release>-<architecture>.txt`.

    python -m releases.tools.lock_wheels RELEASE [--as-of TIME] [--flashinfer-index URL]
    python -m releases.tools.lock_wheels --check [RELEASE | FILE ...]

The first asks uv, for x86_64 and aarch64, what a release of `releases/data/wheels.yaml` resolves
to, as far as the index held it at TIME (now, where none is given), and says where that departs
from a plain install. Only metadata is fetched, which takes about a minute. A lock that fails the
checks of `releases/wheels/checks.py` is not written, nor the one of the other architecture.

`--check` is for a schedule, not for each change: it says in one sentence for each lock (all that
the toolkit carries, or those of the releases and files that are named) whether it can be installed
now, that is, whether the index has every locked file, with its hash, and did not yank it. It fetches
metadata alone, for all in well under a minute. As a line of cron, which mails what it prints:

    17 4 * * *  cd /srv/pyinfra-sglang && python -m releases.tools.lock_wheels --check >check.log || cat check.log

uv takes the index from its own settings. FlashInfer keeps precompiled kernels on an index of its
own, whose address `flashinfer install-cubin-wheel --dry-run` prints; without it they stand in the
lock as unresolved.

Exit codes: 0 done; 1 uv failed, or an index did not answer, so that nothing is known of a lock;
2 wrong usage; 3 a lock is refused or can no longer be installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from releases.tools import resolution
from releases.tools.resolution import CannotLock, Question, Target
from releases.wheels.checks import LockProblem, disagreements, problems
from releases.wheels.data import Policy, data, locked_releases, policy
from releases.wheels.records import ARCHITECTURES, Package, WheelLock
from releases.wheels.table import FOLDER, lock_name, lock_text, why_not_locked
from releases.wheels.text import LockDamaged, read_lock, write_lock

PATIENCE_S = 600
"""For one answer of uv; with an empty cache and a slow index it takes about a minute."""


class UvFailed(Exception):
    """uv ended with an error; the text is what it said."""


@dataclass(frozen=True)
class Uv:
    """The uv that is asked."""

    program: str
    version: str

    @classmethod
    def found(cls) -> Uv:
        """Return the uv on the path; CannotLock where there is none or it is too old."""
        program = shutil.which("uv")
        if program is None:
            raise CannotLock(
                "uv is not on the path (https://docs.astral.sh/uv/ says how to get it)"
            )
        return cls(program, resolution.uv_version(_run([program, "--version"])[0]))

    def resolve(
        self,
        asked: Question,
        target: Target,
        *,
        as_of: str | None = None,
        indexes: Sequence[str] = (),
    ) -> tuple[str, str]:
        """Return uv's answer and what it printed beside it; UvFailed where it finds none."""
        arguments = resolution.compile_arguments(
            self.program, asked, target, as_of=as_of, indexes=indexes
        )
        with tempfile.TemporaryDirectory(prefix="lock-wheels-") as folder:
            for name, text in asked.files().items():
                Path(folder, name).write_text(text, encoding="utf-8")
            _, said = _run(arguments, folder)
            return Path(folder, resolution.ANSWER).read_text(encoding="utf-8"), said

    def python(self, target: Target) -> str | None:
        """Return the Python that uv can download for a target, or None."""
        answer, _ = _run(resolution.python_arguments(self.program, target.python))
        return resolution.python_version(answer, target.architecture)


def _run(arguments: list[str], folder: str | None = None) -> tuple[str, str]:
    try:
        done = subprocess.run(
            arguments, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UvFailed(f"no answer in {PATIENCE_S} s: {' '.join(arguments[1:3])}") from None
    if done.returncode != 0:
        raise UvFailed(done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout, done.stderr


def say(text: str) -> None:
    """Print progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def tell(found: Sequence[LockProblem]) -> None:
    """Print problems: what was seen, what is needed, what mends it."""
    for one in found:
        print(f"{one.code}: {one.seen}\n  needed: {one.needed}\n  mend: {one.advice}")


def make(uv: Uv, wanted: Policy, target: Target, as_of: str, index: str | None) -> WheelLock:
    """Return the lock of a release for one target, as the index held it at AS_OF.

    Raise UvFailed where uv finds no solution, CannotLock where a package has no usable wheel.
    """
    where = f"{wanted.release} {target.architecture}"
    say(f"{where}: asking uv, as of {as_of}")
    answer, _ = uv.resolve(resolution.question(wanted), target, as_of=as_of)
    packages = _chosen(answer, target)
    say(f"{where}: {len(packages)} packages; asking what a plain install would take")
    answer, _ = uv.resolve(resolution.question_without(wanted), target, as_of=as_of)
    plain = {name: version for name, (version, _) in resolution.offered(answer).items()}
    _try_without_overrides(uv, wanted, target, as_of)
    if index is not None:
        say(f"{where}: asking for FlashInfer's precompiled kernels")
        packages = _with_kernels(uv, wanted, target, index, packages)
    return WheelLock(
        release=wanted.release,
        architecture=target.architecture,  # type: ignore[arg-type]  # pydantic checks it
        python=target.python,
        glibc=target.glibc,
        cuda=wanted.locked.cuda,
        as_of=as_of,
        uv=uv.version,
        data=wanted.digest,
        departures=tuple(resolution.departures(wanted, packages, plain)),
        unresolved=tuple(
            resolution.unresolved(wanted, packages, target.architecture, uv.python(target))
        ),
        packages=tuple(packages),
    )


def _chosen(answer: str, target: Target) -> list[Package]:
    packages, without = resolution.chosen(answer, target)
    if without:
        raise CannotLock(f"no wheel for this platform: {', '.join(without)}")
    return packages


def _try_without_overrides(uv: Uv, wanted: Policy, target: Target, as_of: str) -> None:
    """Say what uv answers without the overrides: that is how one that is not needed shows."""
    asked = resolution.question(wanted)
    if not asked.overrides:
        return
    try:
        uv.resolve(dataclasses.replace(asked, overrides=()), target, as_of=as_of)
    except UvFailed as error:
        why = resolution.no_solution(str(error))
        if why is None:
            raise
        say(f"without {', '.join(asked.overrides)}: {why}")
    else:
        say(f"without {', '.join(asked.overrides)}: resolves too; is the override still needed?")


def _with_kernels(
    uv: Uv, wanted: Policy, target: Target, index: str, packages: list[Package]
) -> list[Package]:
    parts = data().checks.flashinfer[1:]
    asked = resolution.question_of_kernels(wanted, packages, parts)
    # No date: a plain page of links says none.
    indexes = resolution.indexes_of_kernels(wanted.locked.cuda, index)
    answer, _ = uv.resolve(asked, target, indexes=indexes)
    have = {package.name for package in packages}
    more = [package for package in _chosen(answer, target) if package.name not in have]
    others = [p.name for p in more if not p.name.startswith(parts)]
    if others:
        raise CannotLock(f"FlashInfer's kernels ask for packages of no lock: {', '.join(others)}")
    return sorted([*packages, *more], key=lambda package: package.name)


def lock(uv: Uv, wanted: Policy, as_of: str, index: str | None, folder: Path) -> list[LockProblem]:
    """Write the locks of a release for both architectures into FOLDER, or return why not."""
    made = []
    for architecture in ARCHITECTURES:
        target = Target(wanted.locked.python, wanted.locked.glibc, architecture)
        made.append(make(uv, wanted, target, as_of, index))
    found = [problem for one in made for problem in problems(one)] + disagreements(made)
    if found:
        return found
    for one in made:
        path = folder / lock_name(one.release, one.architecture)
        write_beside(path, write_lock(one))
        print(f"{path.name}: {len(one.packages)} packages, {one.size / 1e9:.1f} GB")
        for gone in one.departures:
            print(f"  {gone.package} {gone.here}, not {gone.without}")
        for open_ in one.unresolved:
            print(f"  unresolved: {open_.name} {open_.version}: {open_.command}")
    return []


def write_beside(path: Path, text: str) -> None:
    """Write a file beside its place, then rename it there."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as beside:
        try:
            beside.write(text)
            os.fchmod(beside.fileno(), 0o644)
            beside.close()
            os.replace(beside.name, path)
        except BaseException:
            os.unlink(beside.name)
            raise


@dataclass(frozen=True)
class Checked:
    """What the check of one lock came to."""

    code: int
    sentence: str


def check(uv: Uv, name: str, text: str, index: str | None, *, own: bool = False) -> Checked:
    """Say in a sentence whether the lock TEXT can be installed now, and 0, 1 or 3.

    The index is asked for metadata alone. FlashInfer's kernels, where the lock has them, are
    looked for only if their index is given. OWN: an operator's lock, not one of the toolkit's.
    """
    try:
        lock_ = read_lock(text)
    except LockDamaged as error:
        return _cannot(name, [f"WHEELS_DAMAGED: {error}"])
    again = None if own else f"python -m releases.tools.lock_wheels {lock_.release}"
    wrong = [f"{one.code}: {one.seen}" for one in problems(lock_, own=own)]
    parts = data().checks.flashinfer[1:]
    asked = [p for p in lock_.packages if index is not None or not p.name.startswith(parts)]
    target = Target(lock_.python, lock_.glibc, lock_.architecture)
    indexes: tuple[str, ...] = ()
    if index is not None and lock_.cuda is not None:
        indexes = resolution.indexes_of_kernels(lock_.cuda, index)
    try:
        answer, said = uv.resolve(resolution.pinned(asked), target, indexes=indexes)
        gone = resolution.gone(asked, answer, said)
    except UvFailed as error:
        why = resolution.no_solution(str(error))
        if why is None:
            first = str(error).splitlines()[0] if str(error) else "uv failed"
            return Checked(1, f"{name}: whether it can be installed now is not known: {first}")
        gone = [why]
    if gone:
        wrong.append(f"WHEELS_GONE: {'; '.join(gone)}")
    if wrong:
        return _cannot(name, wrong, again)
    left_out = len(lock_.packages) - len(asked)
    return Checked(
        0,
        f"{name} can be installed now: the index has all {len(asked)} files with their hashes"
        + (f"; {left_out} of FlashInfer's own index were not asked for" if left_out else ""),
    )


def _cannot(name: str, wrong: Sequence[str], again: str | None = None) -> Checked:
    mend = f"; to lock it again: {again}" if again else ""
    return Checked(3, f"{name} cannot be installed now: {'; '.join(wrong)}{mend}")


def check_all(uv: Uv, asked: Sequence[str], index: str | None, folder: Path) -> int:
    """Print a sentence for each lock of ASKED, releases or paths of locks; return the exit code."""
    codes = [0]
    for one in asked or locked_releases():
        own = Path(one) if policy(one) is None and Path(one).is_file() else None
        for architecture in ARCHITECTURES if own is None else ("",):
            name = one if own else lock_name(one, architecture)
            try:
                text = (
                    own.read_text(encoding="utf-8") if own else lock_text(one, architecture, folder)
                )
            except (OSError, UnicodeDecodeError):
                text = ""
            if text is None:
                missing = why_not_locked(one, architecture, folder)
                assert missing is not None, "no text, no lock"
                found = _cannot(name, [f"{missing.code}: {missing.seen}"])
            else:
                found = check(uv, name, text, index, own=own is not None)
            print(found.sentence, flush=True)
            codes.append(found.code)
    # What cannot be installed is said before what could not be found out.
    return max(codes)


def moment(text: str) -> str:
    """Return a time as locks have it, in UTC; argparse's error for anything else."""
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"not a time such as 2026-11-30T08:00:00Z: {text}"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return when.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Return the command line; argparse ends the program with 2 where it is wrong."""
    head, _, rest = (__doc__ or "").partition("\n\n")
    out = argparse.ArgumentParser(
        "python -m releases.tools.lock_wheels",
        description=head,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("releases", nargs="*", metavar="RELEASE", help=", ".join(locked_releases()))
    out.add_argument("--check", action="store_true", help="say whether locks can be installed now")
    out.add_argument("--as-of", type=moment, metavar="TIME", help="leave out what came later")
    out.add_argument("--flashinfer-index", metavar="URL", help="where FlashInfer's kernels are")
    out.add_argument(
        "--folder", type=Path, default=FOLDER, metavar="DIR", help="where the locks are"
    )
    found = out.parse_args(given)
    if not found.check and not found.releases:
        out.error("name a release")
    return found


def main(given: Sequence[str]) -> int:
    """Run the command line GIVEN; return its exit code."""
    asked = arguments(given)
    found: list[LockProblem] = []
    try:
        uv = Uv.found()
        if asked.check:
            return check_all(uv, asked.releases, asked.flashinfer_index, asked.folder)
        for release in asked.releases:
            wanted = policy(release)
            if wanted is None:
                missing = why_not_locked(release, ARCHITECTURES[0])
                assert missing is not None, "no policy, no lock"
                found.append(missing)
            else:
                as_of = asked.as_of or moment(datetime.datetime.now(datetime.UTC).isoformat())
                found += lock(uv, wanted, as_of, asked.flashinfer_index, asked.folder)
    except (UvFailed, CannotLock) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    tell(found)
    return 3 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
