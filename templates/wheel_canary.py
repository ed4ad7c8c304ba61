"""Run by the environment's python3 as the service's user, before the server is: will it work there?

It lies in a directory of its own beside ``canary.py``, the image's, which it runs as its first
step. Its words: ``cuda`` or ``cpu``; ``compile:8.9`` for each compute capability to compile for;
``objects:GLOB`` for shared objects, below site-packages, that the dynamic loader is asked about;
``limit:SECONDS`` for each step; ``read:PATH`` and ``write:PATH`` for what the server must be able
to use. The last line it prints is ``@canary`` and one JSON document.

Each step is a process of its own, so that one that crashes is named and the others still run. It
stops at nothing that goes wrong: ``plans/wheel/canary.py`` judges the document. The other lines
are for people.
"""

import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SITE = sysconfig.get_paths()["purelib"]
LINES = 80  # of what a failed step said, from its end: the compiler's reason is among them
WIDTH = 400  # of each
MEANT = re.compile(r"\berror\b|\bfatal\b|cannot |not found|No such file|undefined|Killed", re.I)

FLASHINFER = """
import flashinfer
from flashinfer.jit.activation import gen_act_and_mul_module
# Its smallest kernel: one source, and headers of CUDA that meet another compiler's refuse it.
spec = gen_act_and_mul_module("silu")
# build() alone: build_and_load() takes a kernel of flashinfer-jit-cache where there is one.
spec.build(verbose=False)
spec.load(spec.jit_library_path)
"""

SGLANG = """
import os, torch
from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
from sglang.kernels.ops.layernorm.fused_eh_norm import _jit_fused_eh_norm_module
major, minor = map(int, os.environ["SGLANG_CANARY_CAPABILITY"].split("."))
with override_jit_cuda_arch(major, minor):
    _jit_fused_eh_norm_module(1024, torch.bfloat16)
"""

# What was compiled and linked is loaded now: the loader itself has it.
LOADED = """
with open("/proc/self/maps") as maps:
    for path in sorted({line.split(None, 5)[-1].strip() for line in maps if "%s" in line}):
        print("@loaded", path)
"""

TRITON = """
import triton.backends.nvidia.driver as driver
driver.CudaUtils()
"""

IMPORTS = """
import importlib, importlib.util, sys
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is not None:
        print("@import", name, flush=True)
        importlib.import_module(name)
"""

# SGLang's kernels and what is loaded with them; DeepGEMM asserts at its import that there is nvcc.
KERNELS = ("flashinfer", "sgl_kernel", "deep_gemm")

# With CPU builds of torch nothing has loaded the CUDA runtime that each kernel is linked to.
PRELOAD = """
import ctypes, glob, os, sysconfig
for found in glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/cu1?/lib/libcudart.so.1?"):
    ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)
"""


def say(text):
    """Print a line for whoever watches."""
    print(text, flush=True)


def output(*command, limit=60):
    """Return what a short command printed, with its errors; None where it could not be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def told(text):
    """Return the lines that may hold the reason of a failure, of a length a report can carry."""
    lines = [line[:WIDTH] for line in text.splitlines() if line.strip()]
    last = lines[-LINES:]
    # A compiler may print hundreds of lines after its first error.
    early = [line for line in lines[:-LINES] if MEANT.search(line)][:10]
    return early + last


def number(text, pattern):
    """Return the first group that a pattern finds in a text, or None."""
    found = re.search(pattern, text or "")
    return found.group(1) if found else None


def contents(path):
    """Return a file's text, or None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def tools():
    """Return what compiles and links there: paths and versions, None where there is none."""
    home = os.environ.get("CUDA_HOME") or ""
    nvcc = os.path.join(home, "bin", "nvcc")
    compiler = os.environ.get("CXX") or "c++"
    cxx, cc = (
        shutil.which(compiler),
        shutil.which(os.environ.get("CC") or "gcc") or shutil.which("clang"),
    )
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    api = contents(os.path.join(home, "include", "cuda_runtime_api.h"))
    cudart = number(api, r"#define\s+CUDART_VERSION\s+(\d+)")
    host = contents(os.path.join(home, "include", "crt", "host_config.h"))
    said = output(nvcc, "--version") if os.access(nvcc, os.X_OK) else None
    ninja = shutil.which("ninja")
    return {
        "python_h": {"path": header, "there": os.path.isfile(header)},
        "cuda_home": home,
        "nvcc": {
            "path": nvcc,
            "there": os.path.isfile(nvcc),
            "release": number(said, r"release (\d+\.\d+)"),
            "said": (said or "")[-WIDTH:],
        },
        # CUDART_VERSION is 1000 × major + 10 × minor.
        "headers": f"{int(cudart) // 1000}.{int(cudart) % 1000 // 10}" if cudart else None,
        "newest_gcc": number(host, r"__GNUC__\s*>\s*(\d+)"),
        "cudart": os.path.exists(os.path.join(home, "lib64", "libcudart.so")),
        "cxx": {
            "name": compiler,
            "path": cxx,
            "version": (output(cxx, "-dumpfullversion", "-dumpversion") or "").strip()
            if cxx
            else None,
            "gnu": "Free Software Foundation" in (output(cxx, "--version") or "") if cxx else None,
        },
        "cc": cc,
        "libcuda": linked("cuda", home, cxx),
        "ninja": {
            "path": ninja,
            "version": (output(ninja, "--version") or "").strip() if ninja else None,
        },
        "path": os.environ.get("PATH"),
    }


def hopeless(found):
    """Say whether nothing can compile: the sentence that says why need not wait for it."""
    nvcc, cxx = found["nvcc"], found["cxx"]
    there = (nvcc["release"], cxx["path"], found["cc"], found["ninja"]["path"], found["libcuda"])
    return (
        None in there
        or nvcc["release"] != found["headers"]
        or not (found["cudart"] and found["python_h"]["there"])
    )


def linked(name, home, cxx):
    """Return the file by which -lNAME is linked, or None where a linker finds none."""
    file = f"lib{name}.so"
    for folder in ("lib64", "lib64/stubs"):
        path = os.path.join(home, folder, file)
        if os.path.exists(path):
            return path
    found = (output(cxx, f"-print-file-name={file}") or "").strip() if cxx else ""
    return found if os.path.isabs(found) and os.path.exists(found) else None


def asked(patterns):
    """Ask the dynamic loader what it does not find for the shared objects that matter.

    What another package of the environment brings is not missing: it is loaded before, by its
    name, as torch does with the CUDA libraries.
    """
    files = sorted(
        {path for one in patterns for path in glob.glob(os.path.join(SITE, one), recursive=True)}
    )
    brought = set()
    for _folder, _below, names in os.walk(SITE):
        brought.update(name for name in names if ".so" in name)
    missing, versions = {}, {}
    for start in range(0, len(files), 50):
        part = files[start : start + 50]
        found, where = output("ldd", *part, limit=300), part[0]
        if found is None:
            return {"count": 0, "missing": [], "versions": []}
        for line in found.splitlines():
            if line.startswith("/") and line.endswith(":"):
                where = line[:-1]
                continue
            name = number(line, r"^\s*(\S+) => not found")
            if name is not None and name not in brought:
                missing.setdefault(name, os.path.relpath(where, SITE))
            if "' not found (required by" in line:
                versions.setdefault(line.strip()[:WIDTH], os.path.relpath(where, SITE))
    return {
        "count": len(files),
        "missing": [[name, where] for name, where in sorted(missing.items())],
        "versions": [[line, where] for line, where in sorted(versions.items())][:10],
    }


def step(name, command, limit, **environment):
    """Run one step; return how it ended and, where it failed, what it said."""
    say(f"{name} ...")
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        said, ended = process.communicate(timeout=limit)[0], None
        ended = process.returncode
    except subprocess.TimeoutExpired:
        # The compilers below it too.
        os.killpg(process.pid, 9)
        said, ended = process.communicate()[0], "timeout"
    text = said.decode("utf-8", "replace")
    seconds = round(time.monotonic() - began, 1)
    say(f"{name}: {'done' if ended == 0 else 'failed'} in {seconds:.0f} s")
    one = {"name": name, "ended": ended, "seconds": seconds}
    made = number(text, r"(?m)^@loaded (.*)$")
    if made is not None:
        one["loaded"] = made
        one["code_for"] = code_in(made)
    if ended != 0:
        one["said"] = told(text)
    return one, text


def code_in(path):
    """Return the compute capabilities that a shared object has GPU code for.

    As nvcc writes it down: behind a mark come the size of all that follows, and for each target
    its kind, the sizes of its head and of its code, and the capability as a number (89).
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return []
    found = set()
    for mark in re.finditer(b"\x50\xed\x55\xba", data[:-16]):
        start = mark.start()
        _, _, head, size = struct.unpack_from("<IHHQ", data, start)
        at, end = start + head, start + head + size
        while at + 32 <= min(end, len(data)):
            kind, _, own, code = struct.unpack_from("<HHIQ", data, at)
            if kind not in (1, 2) or own < 32:
                break
            found.add(struct.unpack_from("<I", data, at + 28)[0])
            at += own + code
    return [f"{one // 10}.{one % 10}" for one in sorted(found)]


def python(program, *words):
    """Return the command that runs a program with the environment's own Python.

    Not -I: the server has the environment's variables too, and what they break must show.
    """
    return (sys.executable, "-c", program, *words)


def main(words):
    """Do all of it, and write the document."""
    mode, given = words[0], [word.partition(":")[::2] for word in words[1:]]

    def values(kind):
        return [value for name, value in given if name == kind]

    limit = int((values("limit") or ["600"])[0])
    targets = values("compile")
    # Before anything is loaded: what is missing here explains what fails below.
    say("looking for compilers, headers and libraries ...")
    found = tools()
    objects = asked(values("objects"))
    say(f"asked the dynamic loader about {objects['count']} shared objects")

    used = [f"{kind}:{value}" for kind, value in given if kind in ("read", "write")]
    command = (sys.executable, os.path.join(HERE, "canary.py"), mode, *used)
    first, text = step(
        "loading torch and SGLang" + (", trying each GPU" if mode == "cuda" else ""), command, limit
    )
    document = {"schema": 1, "mode": mode}
    for line in text.splitlines():
        if line.startswith("@canary "):
            document = json.loads(line[len("@canary ") :])
    steps = [first]
    if mode == "cuda" or targets:
        kernels = KERNELS if mode == "cuda" else KERNELS[:1]
        one, text = step("loading " + ", ".join(kernels), python(IMPORTS, *kernels), limit)
        one["at"] = (re.findall(r"(?m)^@import (\S+)$", text) or [None])[-1]
        steps.append(one)
    if targets and hopeless(found):
        say("nothing is compiled: what that needs is not whole")
    elif targets:
        steps.append(step("building Triton's helper", python(TRITON), limit)[0])
        if not os.environ.get("MAX_JOBS"):
            os.environ["MAX_JOBS"] = str(min(4, len(os.sched_getaffinity(0))))
        steps.append(
            step(
                f"compiling a kernel of FlashInfer for {' and '.join(targets)}",
                python(PRELOAD + FLASHINFER + LOADED % "/silu_and_mul.so"),
                limit,
                FLASHINFER_CUDA_ARCH_LIST=" ".join(targets),
            )[0]
        )
        for target in targets:
            steps.append(
                step(
                    f"compiling a kernel of SGLang for {target}",
                    python(PRELOAD + SGLANG + LOADED % "/sgl_kernel_jit_"),
                    limit,
                    SGLANG_CANARY_CAPABILITY=target,
                )[0]
            )
    # What the unit gave it: the server is closed in the same way.
    closed = number(contents("/proc/self/status"), r"NoNewPrivs:\s*(\d)") == "1"
    document.update({"uid": os.getuid(), "no_new_privileges": closed, "compiled_for": targets})
    document.update({"tools": found, "objects": objects, "steps": steps})
    print("@canary " + json.dumps(document), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
