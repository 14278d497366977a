"""What torch says about itself, printed as JSON by a process of its own.

In a process of its own, because importing torch may fail in any way, up to killing the process, and
because running a kernel creates a CUDA context.
"""

import json
from typing import Any

MARK = "devicekit-torch:"


def facts() -> dict[str, Any]:
    """Return what torch says; each question by itself, with `errors` for those that failed."""
    try:
        import torch
    except Exception as error:
        # Whatever it is goes into the report; there is nothing to do here without torch.
        missing = isinstance(error, ImportError) and error.name == "torch"
        return {"missing": missing, "import_error": f"{type(error).__name__}: {error}"}
    errors: dict[str, str] = {}

    def ask(name: str, question: Any) -> Any:
        try:
            return question()
        except Exception as error:
            # One broken answer must not cost the others; it is reported with them.
            errors[name] = f"{type(error).__name__}: {error}"
            return None

    def archs() -> list[str]:
        from devicekit import compat

        return list(compat.cuda_arch_list())

    version: Any = torch.version
    found = {
        "version": torch.__version__,
        "cuda": version.cuda,
        "hip": getattr(version, "hip", None),
        "xpu": getattr(version, "xpu", None),
        "archs": ask("archs", archs),
        "cudnn": ask("cudnn", torch.backends.cudnn.version),
        "nccl": ask("nccl", torch.cuda.nccl.version) if version.cuda else None,
        "available": ask("available", torch.cuda.is_available),
        "devices": [],
        "errors": errors,
    }
    if not (version.cuda or found["hip"]):
        return found
    if not found["available"]:
        found["not_available"] = _why_not(torch)
        return found
    count = ask("device_count", torch.cuda.device_count) or 0
    found["devices"] = [_device(torch, index) for index in range(count)]
    return found


def _why_not(torch: Any) -> str:
    """Return what CUDA says when it is started."""
    try:
        torch.cuda.init()
    except Exception as error:
        # The text is the finding.
        return f"{type(error).__name__}: {error}"
    return "it starts, but shows no device"


def _device(torch: Any, index: int) -> dict[str, Any]:
    """Return what a device is, and whether it runs a kernel."""
    answer: dict[str, Any] = {"index": index}
    try:
        properties = torch.cuda.get_device_properties(index)
        answer["name"] = properties.name
        answer["capability"] = f"{properties.major}.{properties.minor}"
        answer["uuid"] = str(getattr(properties, "uuid", "")) or None
        answer["arch"] = getattr(properties, "gcnArchName", None)
        answer["memory"] = properties.total_memory
        total = torch.ones(2, device=f"cuda:{index}").add(1).sum().item()
        answer["kernel"] = "ok" if total == 4 else f"it computed {total} instead of 4.0"
    except Exception as error:
        # The text is the finding.
        first_line = str(error).partition("\n")[0]
        answer["kernel"] = f"{type(error).__name__}: {first_line}"
    return answer


def main() -> None:
    """Print the facts as one marked line; other lines may come from libraries."""
    print(MARK + json.dumps(facts()), flush=True)


if __name__ == "__main__":
    main()
