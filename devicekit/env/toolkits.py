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
_FOLDERS = (
    Path("C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA")
    if sys.platform == "win32"
    else Path("/usr/local")
)
_PATTERN = "v*.*" if sys.platform == "win32" else "cuda*"


def cuda_home(environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return the toolkit's folder that torch would use, and how it is found.

    The order is that of `torch.utils.cpp_extension`: the variables, `nvcc` on PATH, the folder of
    the installer. Asking torch itself logs a warning on machines without a GPU.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(name):
            return Path(environ[name]), name
    on_path = shutil.which("nvcc", path=environ.get("PATH", ""))
    if on_path:
        return Path(on_path).parent.parent, "PATH"
    if sys.platform == "win32":
        installed = sorted(_FOLDERS.glob(_PATTERN))
        return (installed[0], str(_FOLDERS)) if installed else (None, "")
    default = _FOLDERS / "cuda"
    return (default, str(_FOLDERS)) if default.exists() else (None, "")


def find_nvccs(environ: Mapping[str, str]) -> tuple[Nvcc, ...]:
    """Return every CUDA compiler: of the variables, on PATH, and in the installer's folders."""
    home, _ = cuda_home(environ)
    chosen = home / "bin" / _NVCC if home else None
    found: dict[Path, Nvcc] = {}
    for path, found_by in _candidates(environ):
        # The same file under another name is the same compiler, unless torch uses that name.
        real = path.resolve()
        used = path == chosen
        if not path.is_file() or (real in found and (found[real].used or not used)):
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
    for folder in sorted(_FOLDERS.glob(_PATTERN)):
        yield folder / "bin" / _NVCC, str(_FOLDERS)


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
