"""The reasons why a value is not available: a code for programs, a sentence for people."""

from __future__ import annotations

__all__ = ["REASONS", "UNAVAILABLE", "sentence"]

# Why one value is missing.
REASONS = {
    "binding_too_old": "the installed NVML binding lacks the call; "
    "run: pip install --upgrade nvidia-ml-py",
    "container": "NVML counts processes as the host does, and this is a container with its own "
    "process ids; start it with --pid=host to see names",
    "corrupt_text": "the driver returned text that is not UTF-8",
    "cuda_index_unknown": "the variables leave CUDA's order open and the CUDA driver could not be "
    "asked; set CUDA_DEVICE_ORDER=PCI_BUS_ID",
    "cuda_not_initialized": "this process has not used CUDA yet",
    "driver_too_old": "the driver does not have this function",
    "exited": "the process ended while it was looked at",
    "gpu_lost": "the GPU has fallen off the bus; reset it or restart the machine",
    "implausible": "the driver returned a value that cannot be true",
    "masked": "CUDA_VISIBLE_DEVICES hides this GPU from CUDA",
    "mig": "the GPU is split into MIG devices, and NVML answers this for none or for each of them",
    "no_sample": "the driver has no recent sample",
    "not_applicable": "it does not apply here",
    "not_found": "NVML does not know it",
    "not_reported": "nvidia-smi does not report it; run: pip install nvidia-ml-py",
    "not_supported": "this GPU or its driver does not support the question",
    "nvml_error": "NVML failed",
    "permission": "the question needs more rights; run as administrator",
    "reset_required": "the GPU must be reset",
    "timeout": "the driver did not answer in time",
    "torch_not_loaded": "this process has not imported torch",
    "unified_memory": "the GPU shares the memory of the system and has none of its own",
    "unknown_error": "the driver failed without a cause; the GPU may be lost",
    "wddm": "Windows manages the memory (driver model WDDM) and NVML does not see it per process",
}

# Why there is nothing at all: the sentence and what to do about it.
UNAVAILABLE = {
    "no_driver": (
        "No NVIDIA driver is installed here: the NVML library was not found.",
        "Install an NVIDIA driver if this machine has an NVIDIA GPU; "
        "in a container, start it with --gpus all.",
    ),
    "driver_not_loaded": (
        "The NVIDIA driver is installed but not loaded.",
        "Load it (on Linux: sudo modprobe nvidia) or restart the machine.",
    ),
    "version_mismatch": (
        "The NVML library and the loaded driver have different versions: "
        "the driver was updated while it was loaded.",
        "Restart the machine, or unload and load the kernel module nvidia.",
    ),
    "no_binding": (
        "The GPUs cannot be asked: nvidia-ml-py is not installed and nvidia-smi was not found.",
        "If this machine has an NVIDIA GPU, run: pip install 'torch-devicekit[monitor]'",
    ),
    "wrong_binding": (
        "The module `pynvml` installed here is not the one of nvidia-ml-py.",
        "Run: pip uninstall pynvml nvidia-ml-py3; pip install --force-reinstall nvidia-ml-py",
    ),
    "nvidia_smi_failed": (
        "nvidia-smi failed.",
        "For the cause, run nvidia-smi; for more detail, run: pip install nvidia-ml-py",
    ),
    "no_gpu": ("The NVIDIA driver works but sees no GPU.", "Check that the GPU is powered."),
    "permission": (
        "The NVIDIA driver refuses this user.",
        "Check the rights of /dev/nvidia* or run as administrator.",
    ),
    "nvml_error": ("NVML could not be started.", "Run nvidia-smi for the driver's own words."),
}


def sentence(reason: str) -> str:
    """Return the sentence of a code; an unknown code stands for itself."""
    if reason in REASONS:
        return REASONS[reason]
    return UNAVAILABLE[reason][0] if reason in UNAVAILABLE else reason
