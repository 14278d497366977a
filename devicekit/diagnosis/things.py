"""What a statement mentions, with its tensors, and the device that all of it should be on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from devicekit.diagnosis.frames import Call, has_type
from devicekit.diagnosis.mentions import Mention, mentioned
from devicekit.diagnosis.tensors import devices_of, is_free, names_of_parameters, tensors_of

__all__ = ["Thing", "target_of", "things_in"]


@dataclass
class Thing:
    """What a statement mentions: its tensors, and those that are off."""

    mention: Mention
    tensors: list[tuple[str, Tensor]]

    def off(self, target: torch.device) -> list[tuple[str, Tensor]]:
        """The tensors that are somewhere else than on a device."""
        return [(p, t) for p, t in self.tensors if t.device != target and not is_free(t)]


def things_in(call: Call) -> list[Thing]:
    """What the statement that a frame runs mentions, with the tensors of each."""
    known = names_of_parameters(call.scope.items())
    return [Thing(m, list(tensors_of(m.value, m.path, known))) for m in mentioned(call)]


def target_of(
    things: Iterable[tuple[Any, Sequence[tuple[str, Tensor]]]], devices: Sequence[torch.device]
) -> torch.device:
    """The device that the others should be on: the accelerator; of two, the one of the modules.

    Args:
        things: What met: each object, with its tensors and their paths.
        devices: Where these tensors are.
    """
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    if len(accelerators) == 1:
        return accelerators[0]
    candidates = accelerators or [device for device in devices if device.type != "meta"]
    if not candidates:
        return devices[0]
    for value, tensors in things:
        if has_type(value, nn.Module | nn.Parameter):
            own = [d for d in devices_of(t for _, t in tensors) if d in candidates]
            if own:
                return own[0]
    return candidates[0]
