"""Numbers with units, as messages show them."""

__all__ = ["format_bytes"]


def format_bytes(count: float) -> str:
    """Write a number of bytes for people, in decimal units as in "16 GB/s".

    Args:
        count: Bytes.

    Example:
        >>> format_bytes(1), format_bytes(1600), format_bytes(64 * 1024**2)
        ('1 byte', '1.6 KB', '67.1 MB')
    """
    if count < 1000:
        return f"{count:.0f} byte{'s' if count != 1 else ''}"
    unit = ""
    for unit in ("KB", "MB", "GB", "TB"):  # noqa: B007
        count /= 1000
        if count < 999.95:  # what is not rounded up to 1000.0
            break
    return f"{count:.1f} {unit}"
