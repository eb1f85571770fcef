"""``python -m invar`` and the script ``invar`` run the command ``invar`` that this package has."""

import importlib.util
import os
import signal
import sys
from pathlib import Path


def command_path():
    """The command in this package, wherever the package was installed."""
    path = Path(__file__).resolve().parent / "bin" / "invar"
    if not os.access(path, os.X_OK):
        sys.exit(f"invar: no command at {path}: install the wheel, which has it")
    return str(path)


def nccl_directory():
    """The directory of the NCCL that this Python's packages bring, or None."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return None
    for package in (found.submodule_search_locations or []) if found else []:
        directory = Path(package) / "lib"
        if (directory / "libnccl.so.2").is_file():
            return str(directory)
    return None


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["env"]:
        flags = [argument.split("=")[0] for argument in arguments]
        nccl = nccl_directory()
        if "--nccl" not in flags and nccl is not None:
            arguments += ["--nccl", nccl]
    command = command_path()
    # Python ignores these signals, and the programs of `invar run` would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    main()
