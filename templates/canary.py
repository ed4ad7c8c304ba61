"""Run by python3 inside the image, before the server is: what is in it, and does CUDA work there?

It comes over standard input; its words are ``cuda`` or ``cpu``, then ``read:PATH`` and
``write:PATH`` for what the server must be able to use. The last line it prints is ``@canary``
and one JSON document; ``plans/canary.py`` judges it. It stops at nothing that goes wrong: what
it could not do stands in the document. It imports nothing beside the standard library before
CUDA's own library was asked, so that a broken package hides no error of the driver.
"""

import ctypes
import importlib
import importlib.metadata
import json
import os
import sys
import tempfile

PACKAGES = ("sglang", "torch", "transformers", "triton", "sgl-kernel", "sglang-kernel")
FAMILIES = ("flashinfer", "nvidia-", "sgl-", "sglang-")
SIDE = 64  # of the matrices that are multiplied
MOST = 5  # paths that are named of those that cannot be used


def versions():
    """Return the version of each package that decides how the server runs."""
    found = {}
    for one in importlib.metadata.distributions():
        name = (one.metadata["Name"] or "").lower().replace("_", "-")
        if name in PACKAGES or name.startswith(FAMILIES):
            found[name] = one.version
    return dict(sorted(found.items()))


def said(error):
    """Return an exception as one line of text, of a length that a report can hold."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:600]


def loaded(library):
    """Return the file that a loaded library was mapped from, or None."""
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line.rstrip("\n").partition("/")[2]
                if path.rpartition("/")[2].startswith(library):
                    return "/" + path
    except OSError:
        pass
    return None


def driver(document):
    """Ask libcuda itself, below all packages: its numbers are the ones that are documented."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        document["cuda"] = {"missing": said(error)}
        return False
    number = cuda.cuInit(0)
    version, name, text = ctypes.c_int(), ctypes.c_char_p(), ctypes.c_char_p()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuGetErrorName(number, ctypes.byref(name))
    cuda.cuGetErrorString(number, ctypes.byref(text))
    document["cuda"] = {
        "init": number,
        "name": (name.value or b"").decode(),
        "text": (text.value or b"").decode(),
        "driver_version": version.value,
        "library": loaded("libcuda.so"),
    }
    return number == 0


def kernel(torch, index):
    """Multiply two small matrices on a GPU; return whether the result is what it must be."""
    place = f"cuda:{index}"
    ones = torch.ones((SIDE, SIDE), device=place, dtype=torch.float16)
    total = (ones @ ones).float().sum()
    torch.cuda.synchronize(index)
    return float(total.item()) == float(SIDE**3)


def devices(torch, document):
    """Name each GPU that CUDA lists, and run one kernel on it."""
    count = torch.cuda.device_count()
    # is_available() and device_count() swallow errors; this does not.
    torch.cuda.init()
    for index in range(count):
        one = {"index": index}
        document["devices"].append(one)
        try:
            properties = torch.cuda.get_device_properties(index)
            one["name"] = properties.name
            one["capability"] = f"{properties.major}.{properties.minor}"
            one["memory_mib"] = properties.total_memory // 1048576
            one["uuid"] = str(getattr(properties, "uuid", "")) or None
            one["right"] = kernel(torch, index)
        except Exception as error:  # a RuntimeError of CUDA, whatever class torch gives it
            one["error"] = said(error)


def load(name, document):
    """Import a package as the server will; return it, or None and say why not."""
    try:
        return importlib.import_module(name)
    except BaseException as error:  # SystemExit too: some packages end the program
        document["imports"][name] = said(error)
        return None


def unreadable(path):
    """Give each file at or below a path that cannot be opened, and why; hidden ones do not count."""
    if os.path.isfile(path):
        folders = [(os.path.dirname(path), [], [os.path.basename(path)])]
    else:
        try:
            os.listdir(path)
        except OSError as error:
            yield f"{path}: {error.strerror}"
            return
        folders = os.walk(path, followlinks=True)
    for folder, below, files in folders:
        below[:] = [name for name in below if not name.startswith(".")]
        for name in below:
            if not os.access(os.path.join(folder, name), os.R_OK | os.X_OK):
                yield f"{os.path.join(folder, name)}: Permission denied"
        for name in files:
            if name.startswith("."):
                continue
            try:
                with open(os.path.join(folder, name), "rb"):
                    pass
            except OSError as error:
                yield f"{os.path.join(folder, name)}: {error.strerror}"


def unwritable(path):
    """Return why no file can be made in a directory, or None."""
    try:
        with tempfile.NamedTemporaryFile(dir=path):
            return None
    except OSError as error:
        return f"{path}: {error.strerror}"


def main(words):
    """Do all of it, and print the document."""
    # The program's own directory would be the working directory of the image.
    sys.path[:] = [path for path in sys.path if path]
    mode = words[0]
    document = {
        "schema": 1,
        "mode": mode,
        "commit": os.environ.get("SGLANG_BUILD_COMMIT"),
        "tag": os.environ.get("SGLANG_IMAGE_TAG"),
        "python": sys.version.split()[0],
        "versions": versions(),
        "torch_cuda": None,
        "cuda": None,
        "devices": [],
        "imports": {},
        "unreadable": [],
        "unwritable": [],
    }
    for word in words[1:]:
        kind, _, path = word.partition(":")
        if kind == "read":
            for _, line in zip(range(MOST), unreadable(path)):  # noqa: B905  (3.9 has no strict)
                document["unreadable"].append(line)
        else:
            why = unwritable(path)
            if why:
                document["unwritable"].append(why)
    if mode == "cpu":
        load("sglang", document)
    elif driver(document):
        torch = load("torch", document)
        if torch is not None:
            document["torch_cuda"] = torch.version.cuda
            try:
                devices(torch, document)
            except Exception as error:
                document["cuda"]["error"] = said(error)
            # What the server loads first of its own; sgl_kernel chooses its code by the GPU.
            for name in ("sglang", "sgl_kernel"):
                load(name, document)
    # On a line of its own, whatever was printed before.
    print("\n@canary " + json.dumps(document), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
