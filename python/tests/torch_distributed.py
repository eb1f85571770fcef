"""Runs PyTorch's own tests of torch.distributed on the backend invar, and prints tables of the results.

The tests come from the installed package. Only their settings are changed: this file names the backend.
"""

import collections
import contextlib
import os
import sys
import unittest

os.environ.update(BACKEND="invar", WORLD_SIZE="3", OMP_NUM_THREADS="1",
                  DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="60")

import torch

import invar.torch
from torch.testing._internal.common_distributed import DistTestCases

# The tests of what a backend has ask for its name.
for feature in ["ddp", "plugin"]:
    DistTestCases.backend_feature[feature].add("invar")
# A test of this feature needs all backends of the set. Those that need a GPU ask for it too.
DistTestCases.backend_feature["gpu"] = {"invar"}
DistTestCases.skip_collective["sendrecv anysource"].add("invar")
with contextlib.suppress(ImportError):
    # Python 3.11 refuses a class of PyTorch 1.13 that only replicated tensors need.
    from torch.nn.parallel import _replicated_tensor_ddp_utils as replicated
    replicated._set_ddp_with_replicated_tensor = lambda enabled: None

from torch.testing._internal.distributed import distributed_test


class Distributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """The tests, each in a process for each rank."""

    def setUp(self):
        super().setUp()
        # A fork has all that PyTorch imports, and so starts sooner than PyTorch's own choice, spawn.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Result(unittest.TextTestResult):
    """Counts the tests that pass."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main():
    names = sys.argv[1:] or unittest.TestLoader().getTestCaseNames(Distributed)
    suite = unittest.TestSuite(map(Distributed, names))
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(suite)
    failed = [test for test, _ in result.failures + result.errors]
    print("| passed | skipped | failed |\n|---|---|---|")
    print(f"| {result.passed} | {len(result.skipped)} | {len(failed)} |")
    print("\n| skipped because | tests |\n|---|---|")
    reasons = collections.Counter(reason for _, reason in result.skipped)
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} |")
    for test in failed:
        print(f"failed: {test.id()}")
    sys.exit(bool(failed) or not result.passed)


if __name__ == "__main__":
    main()
