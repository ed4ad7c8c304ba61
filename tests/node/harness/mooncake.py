"""Mooncake's transfer engine as SGLang's images hold it, built without CUDA: over TCP it moves caches
between the halves of a prefill/decode pair on machines without GPU and RDMA.

    https://kvcache-ai.github.io/Mooncake/
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .cache import make_once, run
from .sglang_cpu import HOME, SITE
from .trees import TREES, mirror, tree
from .wheels import PYTHON

WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"

LIBRARIES = "libibverbs1,libcurl4"
"""Debian's packages with what its engine loads."""

UNUSED = ("transfer_engine_bench", "store.so", "mooncake_client", "mooncake_master")
"""Of its 100 MB; SGLang opens the engine alone."""

WHERE = "usr/lib/x86_64-linux-gnu"


def mooncake(cache: Path) -> Path:
    """The directory of all that an image needs for it, from the image's root on; made once."""
    ground = tree(cache, "image")

    def make(beside: Path) -> None:
        run(PYTHON, "-m", "venv", beside / "venv")
        words = ["-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-deps"]
        site = beside / HOME.lstrip("/") / SITE
        run(beside / "venv/bin/python", *words, "--only-binary", ":all:", "--target", site, WHEEL)
        for name in UNUSED:
            (site / "mooncake" / name).unlink(missing_ok=True)
        whole = beside / "whole"
        run(
            *("mmdebstrap", "--quiet", "--mode=root", "--variant=extract"),
            *(f"--include={LIBRARIES}", TREES["image"].suite, whole, mirror()),
        )
        (beside / WHERE).mkdir(parents=True)
        # Some packages write /lib, which is a link there: a layer with a directory would break it.
        for file in [*(whole / WHERE).glob("*.so*"), *whole.glob("lib/x86_64-linux-gnu/*.so*")]:
            if not (ground / WHERE / file.name).exists() and not file.is_dir():
                shutil.copy(file, beside / WHERE / file.name, follow_symlinks=False)
        for name in ("venv", "whole"):
            run("rm", "-r", beside / name)

    stamp = f"{WHEEL} {LIBRARIES} {TREES['image'].packages}\n"
    return make_once(cache / "mooncake", make, stamp)
