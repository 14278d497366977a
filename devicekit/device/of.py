"""The one device of a tensor, a module, an optimizer or a batch."""

import re
from collections.abc import Iterator

import torch

from devicekit.device.spec import WITHOUT_INDEX
from devicekit.errors import DeviceError, DeviceMismatchError
from devicekit.tree import dtype_and_shape, find_tensors
from devicekit.tree.anatomy import is_a

__all__ = ["device_of"]


def device_of(x: object) -> torch.device:
    """Find the device; what is raised, and when, is in `Device.of`."""
    if is_a(x, torch.Tensor):
        return x.device
    places: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for path, tensor in _named_tensors(x):
        places.setdefault(tensor.device, []).append((path, tensor))
    if not places:
        raise DeviceError(
            f"found no tensor in `x`, a {type(x).__name__}, so it has no device: give "
            "Device.of() something that holds a tensor, or name the device you want"
        )
    if len(places) > 1:
        raise DeviceMismatchError(_describe(places))
    return next(iter(places))


def _named_tensors(x: object) -> Iterator[tuple[str, torch.Tensor]]:
    if is_a(x, torch.optim.Optimizer):
        # Its state is left out: torch keeps `step` on the CPU on purpose.
        for i, group in enumerate(x.param_groups):
            for j, parameter in enumerate(group["params"]):
                yield f"optimizer.param_groups[{i}]['params'][{j}]", parameter
        return
    if not is_a(x, torch.nn.Module):
        yield from find_tensors(x, name="data")
        return
    found = False
    for path, tensor in find_tensors(x, name="model"):
        found = True
        yield path, tensor
    if not found:
        # The replicas of DataParallel and the wrappers of FSDP hold plain tensors, no parameters.
        for name, module in x.named_modules():
            prefix = f"model.{name}" if name else "model"
            for attribute, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    yield f"{prefix}.{attribute}", value


_SHOWN = 3


def _describe(places: dict[torch.device, list[tuple[str, torch.Tensor]]]) -> str:
    names = [str(device) for device in places]
    width = max(len(name) for name in names)
    shown = [found[:_SHOWN] for found in places.values()]
    path_width = max(len(path) for found in shown for path, _ in found)
    lines = [
        "expected all tensors to be on the same device, but found "
        f"{', '.join(names[:-1])} and {names[-1]}",
        "",
    ]
    for name, found in zip(names, places.values(), strict=True):
        for i, (path, tensor) in enumerate(found[:_SHOWN]):
            kind = dtype_and_shape(tensor)
            lines.append(f"  {name if i == 0 else '':{width}}  {path:{path_width}}  {kind}")
        if len(found) > _SHOWN:
            lines.append(f"  {'':{width}}  and {len(found) - _SHOWN} more")
    root = re.match(r"\w+", next(iter(places.values()))[0][0])
    target = next((name for name in names if name not in WITHOUT_INDEX), names[0])
    variable = root[0] if root else "data"
    lines += ["", f'  fix: {variable} = devicekit.to_device({variable}, "{target}")']
    return "\n".join(lines)
