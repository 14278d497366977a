"""Which error texts of torch speak of tensors on different devices.

torch words the same failure in about a hundred ways: each kernel, each Python function and each
backend has its own. A text is only a suspicion; the devices are looked at before anything is said.
"""

import re

import torch

__all__ = ["devices_in", "devices_said", "first_line", "is_suspect", "wants_host"]

# Any of these makes a text a suspect. Broad on purpose: what matches by chance is let go when
# the tensors turn out to agree. Gaps have an end: without one, a long text with many beginnings
# would be searched for hours.
_SUSPECT = re.compile(
    r"""
      same\ (?:\w+\ ){0,3}?devices?                  # the same device, same type of device
    | same\ (?:\w+\ ){0,3}?device\ type
    | different\ (?:\w+\ )?devices?
    | devices?\ must\ match | must\ match\ device | does\ not\ match\ .{0,300}device
    | devices\ to\ be\ of\ the\ same\ type
    | device\ mismatch | device\ index\ mismatch | mismatch\ between\b.{0,300}device
    | is\ not\ on\ the\ expected\ device
    | on\ expected\ device | expected\ device\(s\)
    | expects?\ .{0,300}\ to\ be\ on\ (?:the\ )?(?:device|cpu|gpu|cuda)
    | expected\ .{0,300}\ (?:to\ be\ on|to\ have)\ device
    | expected\ a\ '\w+'\ device\ type\ for\ generator
    | expected\ '\w+'\ to\ be\ (?:a\ )?\w+\ tensor,\ but\ got\ tensor\ on
    | input\ type\ .{0,300}\ weight\ type\ .{0,300}should\ be\ the\ same
    | input\ type\ .{0,300}\ bias\ type\ .{0,300}should\ be\ the\ same
    | input\ and\ (?:hidden|parameter)\ tensors\ are\ not\ at
    | dense\ tensor,\ but\ got\ tensor\ on\ device
    | device\(\)\ ==
    | expected\ a\ cuda\ device\b | mismatched\ device\ for
    | must\ be\ on\ the\ current\ device | match\ the\ device\ supplied
    | should\ be\ (?:either\ )?on\ cpu
    | should\ (?:always\ )?be\ on\ (?:the\ )?cpu
    | must\ (?:all\ )?(?:be|reside|live)\ on\ (?:the\ )?(?:cpu|cuda|gpu|device)
    | must\ be\ an?\ (?:cpu|cuda|xpu|mps|\w+)\ tensor
    | should\ be\ a\ 1d\ cpu\ int64\ tensor
    | can't\ convert\ .{0,300}\ device\ type\ tensor\ to\ numpy
    | type\ of\ device\ .{0,300}\ but\ got
    | on\ the\ same\ type\ of\ devices?
    | parameters\ (?:and\ buffers\ )?on\ device
    | expects?\ .{0,300}\ cpu\ tensors?
    | attempting\ to\ (?:send|receive)\ a\ tensor\ with\ unexpected\ device
    | expected\ object\ of\ (?:backend|device\ type)
    | found\ (?:at\ least\ )?two\ devices
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)

# In these the tensor on the accelerator is the one that is off: the operation runs on the host.
_HOST = re.compile(
    r"""
      can't\ convert\ .{0,300}\ device\ type\ tensor\ to\ numpy
    | should\ be\ a\ 1d\ cpu\ int64\ tensor
    | expected\ a\ 'cpu'\ device\ type\ for\ generator
    | should\ (?:always\ )?be\ on\ cpu
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)

_DEVICE = re.compile(
    r"\b(cpu|cuda|meta|mps|xpu|hpu|npu|mtia|xla|ipu|maia|vulkan|privateuseone|sim)(:\d+)?\b",
    re.IGNORECASE,
)


def is_suspect(text: str) -> bool:
    """Say whether an error text may be about tensors on different devices."""
    return _SUSPECT.search(text) is not None


def wants_host(text: str) -> bool:
    """Say whether an error text demands a tensor on the CPU."""
    return _HOST.search(text) is not None


def devices_in(text: str) -> list[str]:
    """List the devices that an error text names, in order, each once."""
    return list(dict.fromkeys(kind.lower() + index for kind, index in _DEVICE.findall(text)))


def devices_said(text: str) -> list[torch.device]:
    """The devices in the sentence that torch has for a mismatch."""
    match = _SAID.search(text)
    found = [] if match is None else [one for one in match.groups() if one]
    return [torch.device(one) for one in found if _is_device(one)]


_SAID = re.compile(
    r"same device.{0,300}?found (?:at least two devices, )?(\S{1,40}) and (\S{1,40})!"
    r"|same device.{0,300}? is on (\S{1,40}), different from other tensors on (\S{1,40})"
)


def _is_device(text: str) -> bool:
    try:
        torch.device(text)
    except RuntimeError:  # somebody else's sentence in the same words
        return False
    return True


def first_line(text: str) -> str:
    """The line of an error text that says what is wrong; torch adds advice below."""
    return text.strip().partition("\n")[0]
