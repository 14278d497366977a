"""Which code for NVIDIA GPUs runs on which of them."""

import re

__all__ = ["INTEGRATED", "arch_runs"]

# Chips with a memory of their own and those without run each other's code only where the table
# says so: the number of the code, and the only capabilities or the exceptions
# (10.1 was renamed to 11.0).
_ONLY_ON = {53: {53}, 62: {62}, 72: {72}, 87: {87}, 101: {101, 110}, 110: {101, 110}}
_NOT_ON = {50: {53}, 52: {53}, 60: {62}, 61: {62}, 70: {72}, 80: {87}, 86: {87}, 100: {101}}
INTEGRATED = frozenset(divmod(number, 10) for number in _ONLY_ON)
"""The compute capabilities of chips without a memory of their own (Jetson)."""

# The newest rules are of 2025; a later family may make exceptions of its own.
_NEWEST_KNOWN_MAJOR = 12


def arch_runs(arch: str, capability: tuple[int, int]) -> bool | None:
    """Tell whether code for an architecture runs on a GPU; `None` when no rule covers it.

    Machine code (`sm_80`) runs on the same major version from its minor version on, code marked
    with a letter (`sm_90a`) on exactly that GPU, or (`sm_100f`) on its family. PTX (`compute_80`)
    is compiled for anything newer. The rules are those of NVIDIA's CUDA Programming Guide, "Compute
    Capabilities".

    Args:
        arch: As in `torch.cuda.get_arch_list()`: "sm_80", "sm_90a", "sm_100f", "compute_90".
        capability: The compute capability of the GPU: major and minor version.

    Example:
        >>> arch_runs("sm_80", (8, 9)), arch_runs("sm_90a", (9, 0)), arch_runs("compute_80", (9, 0))
        (True, True, True)
        >>> arch_runs("sm_86", (8, 0)), arch_runs("sm_80", (9, 0)), arch_runs("sm_80", (8, 7))
        (False, False, False)
    """
    matched = re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", arch)
    if matched is None:
        return None
    kind, suffix = matched[1], matched[4]
    code = (int(matched[2]), int(matched[3]))
    code_number, gpu_number = code[0] * 10 + code[1], capability[0] * 10 + capability[1]
    if suffix == "a":
        return code == capability
    if kind == "compute" and not suffix:
        return capability >= code
    if code_number in _ONLY_ON and not suffix:
        return gpu_number in _ONLY_ON[code_number]
    if code[0] != capability[0]:
        return False
    if code[0] > _NEWEST_KNOWN_MAJOR:
        return True if code == capability else None
    return capability[1] >= code[1] and gpu_number not in _NOT_ON.get(code_number, ())
