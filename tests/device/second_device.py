"""A device named `second`, made of host memory: built once per version of its source, then loaded by every process.

Importing torch loads it wherever the folder of `install` is on the path, as it does the extensions of hardware
vendors; so commands, worker processes and tests see an accelerator named `second`, of which there are two.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import sysconfig
import types
from pathlib import Path

SOURCE = Path(__file__).with_name("second.cpp")


def missing() -> str | None:
    """Why the device cannot be built here; None if it can."""
    if not sys.platform.startswith("linux"):
        return f"the second device is built on Linux only, and this is {sys.platform}"
    if shutil.which("ninja") is None:
        return "building the second device needs ninja, which is not installed"
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"building the second device needs a C++ compiler, and there is no {compiler}"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "building the second device needs Python's headers, which are not installed"
    return None


def build(cache: Path) -> Path:
    """The compiled extension, made if this version of it is not in the cache yet."""
    import torch
    from torch.utils import cpp_extension

    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    folder = cache / f"second-{digest}"
    library = folder / "second.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        cpp_extension.load(
            "second", [str(SOURCE)], extra_cflags=["-O1"], build_directory=str(folder), is_python_module=False
        )
    return library


def install(library: Path, folder: Path) -> Path:
    """A folder that, once it is on PYTHONPATH, gives every process that imports torch the device."""
    plugin = folder / "plugin"
    described = plugin / "second_device-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: second-device\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[torch.backends]\nsecond = second_device:load\n")
    (plugin / "library.txt").write_text(str(library))
    shutil.copy(__file__, plugin)
    return plugin


def load(library: Path | None = None) -> None:
    """Register the device in this process."""
    import torch

    if library is None:
        library = Path(Path(__file__).with_name("library.txt").read_text())
    torch.ops.load_library(str(library))
    torch.utils.rename_privateuse1_backend("second")
    module = types.ModuleType("torch.second")
    # What torch asks of a device's own module; it draws from the processor's generator, so there is nothing to seed.
    for name, answer in {
        "is_available": True,
        "device_count": 2,
        "current_device": 0,
        "_is_in_bad_fork": False,
        "manual_seed_all": None,
        "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
        "current_stream": types.SimpleNamespace(synchronize=lambda: None),
        "stream": contextlib.nullcontext(),
        "synchronize": None,
    }.items():
        setattr(module, name, lambda *_, answer=answer: answer)
    torch._register_device_module("second", module)
