"""Invar for Python: collectives and messages between processes, on memory of the host.

Each process is one rank. Under a launcher (torchrun, mpirun, srun, an indexed job of Kubernetes) the
ranks find each other by its variables::

    with invar.Communicator.from_env() as comm:
        comm.all_reduce(gradients)

Without a launcher one process opens a Hub, and the program brings the 128 bytes of its id to the others.
Here the ranks are threads:

>>> import threading
>>> import numpy as np
>>> def rank(number, hub_id, sums):
...     with invar.Communicator.join(hub_id, number, 2) as comm:
...         data = np.full(3, 1 + number)
...         comm.all_reduce(data)
...         sums[number] = data
>>> sums = {}
>>> with invar.Hub(2) as hub:
...     ranks = [threading.Thread(target=rank, args=(n, hub.id, sums)) for n in range(2)]
...     for thread in ranks:
...         thread.start()
...     for thread in ranks:
...         thread.join()
>>> sums[0], sums[1]
(array([3, 3, 3]), array([3, 3, 3]))

The wheel also has the plugin of NCCL: ``nccl_plugin_path()`` is its path, and ``python -m invar env``
prints the variables with which the NCCL of this Python loads it.
"""

from pathlib import Path

from invar._invar import Communicator, Error, Group, Hub, Work, __version__

__all__ = [
    "Communicator",
    "Error",
    "Group",
    "Hub",
    "Work",
    "__version__",
    "nccl_plugin_path",
]


def nccl_plugin_path() -> str:
    """The absolute path of ``libnccl-net-invar.so``.

    The wheel has it, a package of ``cargo xtask python`` has not.
    """
    path = Path(__file__).resolve().parent / "libnccl-net-invar.so"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: the plugin is missing: install the wheel, which has it")
    return str(path)
