#!/usr/bin/env python3
"""Runs every check that needs a GPU, and real NCCL through PyTorch, and writes a report.

    python3 run.py [REPORT]        (default: gpu.md in the current folder)

Needs a GPU with its driver. The checks of NCCL also need PyTorch with CUDA; without it they are left out,
and the report says so. Exit status: 0 all is well, 1 a check failed, 2 there is no GPU.
"""
import contextlib
import ctypes
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
INVAR = HERE / "bin/invar"
PLUGIN = HERE / "lib"
# A check that takes longer hangs.
WITHIN_S = 1200
MACHINE = [
    "uname -srm",
    "lscpu",
    "nvidia-smi --query-gpu=name,pci.bus_id,driver_version,memory.total --format=csv",
    "nvidia-smi topo -m",
    "rdma link",
]
COLLNET = "Invar's collNet over TCP"
# NCCL has no other algorithm left, and so fails or warns if it cannot use collNet.
ONLY_COLLNET = {"NCCL_COLLNET_ENABLE": "1", "NCCL_ALGO": "CollnetDirect,CollnetChain"}
# The networks that take turns: a name, and variables beside those of `invar env`.
NETWORKS = [
    ("Invar over TCP", {"INVAR_TRANSPORT": "socket"}),
    ("Invar over the software NIC", {"INVAR_TRANSPORT": "soft"}),
    (COLLNET, {"INVAR_TRANSPORT": "socket", **ONLY_COLLNET}),
    ("NCCL's own socket transport", None),
]
TURNS = 3


def missing_gpu():
    """Why this machine has no GPU to use; None if it has one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"CUDA's driver does not load: {error}"
    code = driver.cuInit(0)
    if code != 0:
        return f"cuInit returns {code}"
    count = ctypes.c_int()
    code = driver.cuDeviceGetCount(ctypes.byref(count))
    if code != 0 or count.value == 0:
        return f"the driver has {count.value} GPUs (code {code})"
    return None


def output_of(command, variables=()):
    """The exit status of a command, and all that it writes."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NCCL_", "INVAR_"))
    }
    environment.update(variables)
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # The command's own processes are in its group, and end with it.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        return 127, str(error)
    try:
        text, _ = process.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired as error:
        text = error.stdout or b""
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        return 124, f"{text}\nno end within {WITHIN_S} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, text


class Report:
    def __init__(self, path):
        self.path = path
        self.failed = []
        self.text = "# Seen on a machine with a GPU\n\n`cargo xtask gpu` has written this.\n"

    def add(self, title, text):
        self.text += f"\n## {title}\n\n```text\n{text.rstrip()}\n```\n"
        self.path.write_text(self.text)

    def note(self, text):
        self.text += f"\n{text}\n"
        self.path.write_text(self.text)

    def check(self, title, command, variables=()):
        """Runs a check that must succeed."""
        print(title, flush=True)
        code, text = output_of(command, variables)
        if code != 0:
            self.failed.append(title)
            print(f"FAILED ({code}): {title}\n{text}", flush=True)
        self.add(title if code == 0 else f"{title}: FAILED ({code})", text)
        return text


def nccl_library():
    """The NCCL of PyTorch's packages; None if PyTorch has NCCL within itself."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    folders = spec.submodule_search_locations if spec else []
    files = [pathlib.Path(folder) / "lib/libnccl.so.2" for folder in folders or []]
    return next((file for file in files if file.is_file()), None)


def plugin_variables():
    command = [INVAR, "env", "--json", "--plugin", PLUGIN]
    library = nccl_library()
    if library:
        command += ["--nccl", library]
    code, text = output_of(command)
    if code != 0:
        raise SystemExit(f"invar env fails: {text}")
    return json.loads(text)["environment"]


def uses_collnet(log):
    """Whether NCCL's log says that collNet is on, and that NCCL keeps to NCCL_ALGO."""
    return "NET/Invar : collNet is on" in log and "ignoring NCCL_ALGO" not in log


def collectives(report):
    """Runs NCCL's collectives over each network in turns."""
    if importlib.util.find_spec("torch") is None:
        report.note("NCCL was not run: this Python has no PyTorch.")
        return
    variables = plugin_variables()
    best = {}
    for turn in range(1, TURNS + 1):
        for name, more in NETWORKS:
            own = {"NCCL_NET": "Socket"} if more is None else {**variables, **more}
            command = [sys.executable, HERE / "two_ranks.py"]
            if name == COLLNET:
                # NCCL has these algorithms for few operations besides.
                command += ["--ops", "all_reduce"]
            text = report.check(f"NCCL, turn {turn}: {name}", command, own)
            if more is not None and "NET/Invar : Using" not in text:
                report.failed.append(f"{name}: NCCL did not take the plugin")
            if name == COLLNET and not uses_collnet(text):
                report.failed.append(f"{name}: NCCL did not use collNet")
            for line in text.splitlines():
                if line.startswith("{"):
                    row = json.loads(line)
                    times = best.setdefault((row["op"], row["bytes"]), {})
                    times[name] = min(times.get(name, float("inf")), row["time_us"])
    names = [name for name, _ in NETWORKS]
    report.note("## NCCL over two ranks of one GPU\n")
    report.note("The best time of each network in microseconds.\n")
    lines = [f"| operation | bytes | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for (op, size), times in best.items():
        cells = [f"{times[name]:.1f}" if name in times else "" for name in names]
        lines.append(f"| {op} | {size} | {' | '.join(cells)} |")
    report.note("\n".join(lines))


def main():
    why = missing_gpu()
    if why:
        print(f"run.py: there is no GPU here: {why}", file=sys.stderr)
        return 2
    report = Report(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "gpu.md"))
    for line in MACHINE:
        report.add(f"`{line}`", output_of(line.split())[1])
    report.check("`invar devices`", [INVAR, "devices"])
    for program in ("cuda", "cuda-cust"):
        if not (HERE / "tests" / program).is_file():
            continue
        for level in ("PXB", "SYS"):
            report.check(
                f"Checks of {program}, NCCL_NET_GDR_LEVEL={level}",
                [HERE / "tests" / program, "hardware", "--nocapture", "--test-threads=1"],
                {"INVAR_GPU": "1", "NCCL_NET_GDR_LEVEL": level},
            )
    report.check("Staging beside one copy of all", [HERE / "tests/bench_staging"])
    collectives(report)
    for title in report.failed:
        print(f"failed: {title}", file=sys.stderr)
    print(f"written: {report.path}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
