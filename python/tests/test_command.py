"""``python -m invar`` runs the command that lies in the package."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import invar

PACKAGE = Path(invar.__file__).resolve().parent
# A command that shows its arguments and the signals that it ignores.
SHOWS = '#!/bin/sh\necho "$0" "$@"\nsed -n "s/^SigIgn:[[:space:]]*//p" /proc/$$/status\n'
# The bits of SIGPIPE and SIGXFSZ.
IGNORED_BY_PYTHON = 1 << 12 | 1 << 24


def run(folder, *arguments):
    """Runs the package in this folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    words = [sys.executable, "-m", "invar", *arguments]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


class Command(unittest.TestCase):
    def test_the_command_of_the_package_runs_wherever_the_package_lies(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder).resolve()
            package = folder / "invar"
            (package / "bin").mkdir(parents=True)
            for path in PACKAGE.iterdir():
                if path.is_file():
                    (package / path.name).symlink_to(path)
            # The package lies where this file is.
            (package / "__main__.py").unlink()
            shutil.copy(PACKAGE / "__main__.py", package)
            command = package / "bin" / "invar"
            command.write_text(SHOWS)
            command.chmod(0o755)
            ran = run(folder, "run", "--", "a b")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        line, ignored = ran.stdout.splitlines()
        self.assertEqual(line, f"{command} run -- a b")
        self.assertEqual(int(ignored, 16) & IGNORED_BY_PYTHON, 0)

    def test_a_package_without_the_command_says_where_it_should_be(self):
        line = f"invar: no command at {PACKAGE / 'bin' / 'invar'}: install the wheel, which has it"
        for argument in ("perf", "env"):
            ran = run(PACKAGE.parent, argument)
            self.assertEqual((ran.returncode, ran.stdout, ran.stderr.strip()), (1, "", line))


if __name__ == "__main__":
    unittest.main()
