"""The CUDA compilers on this machine, and which of them torch would use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from devicekit.children import run
from devicekit.env.data import Nvcc

__all__ = ["cuda_home", "find_nvccs"]

TIMEOUT_S = 5.0
_NVCC = "nvcc.exe" if sys.platform == "win32" else "nvcc"
# Where installers put toolkits.
_FOLDER = (
    Path("C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA")
    if sys.platform == "win32"
    else Path("/usr/local")
)
_PATTERN = "v*.*" if sys.platform == "win32" else "cuda*"


def cuda_home(environ: Mapping[str, str]) -> Path | None:
    """Return the toolkit's folder that torch would use.

    The order is that of `torch.utils.cpp_extension`: the variables, `nvcc` on PATH, the folder of
    the installer. Asking torch itself logs a warning on machines without a GPU.
    """
    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if named:
        return Path(named)
    on_path = shutil.which("nvcc", path=environ.get("PATH", ""))
    if on_path:
        return Path(on_path).parent.parent
    if sys.platform == "win32":
        return next(iter(sorted(_FOLDER.glob(_PATTERN))), None)
    default = _FOLDER / "cuda"
    return default if os.path.exists(default) else None


def find_nvccs(environ: Mapping[str, str]) -> tuple[Nvcc, ...]:
    """Return every CUDA compiler: of the variables, on PATH, and in the installer's folders."""
    home = cuda_home(environ)
    chosen = home / "bin" / _NVCC if home else None
    found: dict[str, Nvcc] = {}
    for path, found_by in _candidates(environ):
        # The same file under another name is the same compiler, unless torch uses that name.
        real = os.path.realpath(path)
        used = path == chosen
        # Not `Path.is_file`, which raises for a folder that may not be read.
        if not os.path.isfile(path) or (real in found and (found[real].used or not used)):
            continue
        release, reason = _release(path)
        found[real] = Nvcc(
            path=str(path),
            version=".".join(release.split(".")[:2]) if release else None,
            release=release,
            found_by=found_by,
            used=used,
            reasons={"version": reason, "release": reason} if reason else {},
        )
    return tuple(found.values())


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            yield Path(environ[name]) / "bin" / _NVCC, name
    for entry in environ.get("PATH", "").split(os.pathsep):
        if entry:
            yield Path(entry) / _NVCC, "PATH"
    for folder in sorted(_FOLDER.glob(_PATTERN)):
        yield folder / "bin" / _NVCC, str(_FOLDER)


def _release(path: Path) -> tuple[str | None, str | None]:
    """Return the version that a compiler prints, or the reason why it is not known."""
    try:
        done = run([str(path), "--version"], timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None, "timeout"
    except OSError:
        return None, "does_not_run"
    matched = re.search(r"release (\d+\.\d+)(?:, V([\d.]+))?", done.stdout)
    if done.returncode != 0 or matched is None:
        return None, "no_version_in_output"
    return matched[2] or matched[1], None
