"""``python -m invar``: runs the command ``invar`` that was installed with this package."""

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from invar import nccl_plugin_path


def command_path():
    """The installed command. ``pip`` puts it where its scheme puts scripts."""
    try:
        from importlib.metadata import files

        for file in files("invar") or []:
            if file.name == "invar" and file.parent.name == "bin":
                path = Path(file.locate())
                if path.is_file():
                    return str(path.resolve())
    except ImportError:
        pass
    path = Path(sysconfig.get_path("scripts")) / "invar"
    if path.is_file():
        return str(path)
    sys.exit(f"invar: no command at {path}: install the wheel again")


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
        if "--plugin" not in flags:
            arguments += ["--plugin", nccl_plugin_path()]
    command = command_path()
    os.execv(command, [command, *arguments])


if __name__ == "__main__":
    main()
