"""Invar for Python: where NCCL's plugin is, and the command ``invar``.

``nccl_plugin_path()`` is the path of the plugin. ``python -m invar env`` prints the
variables with which the NCCL of this Python loads the plugin.
"""

from pathlib import Path

__all__ = ["nccl_plugin_path"]


def nccl_plugin_path() -> str:
    """The absolute path of ``libnccl-net-invar.so``."""
    path = Path(__file__).resolve().parent / "libnccl-net-invar.so"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the plugin is missing; install the wheel again")
    return str(path)
