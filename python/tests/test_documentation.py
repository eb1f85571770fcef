"""The examples of docstrings and pages run, and the stubs have what the module has."""

import ast
import doctest
import importlib.util
import inspect
import os
import re
import socket
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np

import invar
from invar import _invar

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/python.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PACKAGE = Path(invar.__file__).parent
CLASSES = [invar.Communicator, invar.Error, invar.Group, invar.Hub, invar.Work]


def run_on_two_ranks(program):
    """Runs a program as two ranks of a launcher. Returns status and output of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, **variables, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    outputs = [child.communicate(timeout=120)[0].decode() for child in children]
    return [(child.returncode, output) for child, output in zip(children, outputs)]


def documented():
    """The names of everything public, and the objects."""
    yield "invar", invar
    for a_class in CLASSES:
        yield a_class.__name__, a_class
        for name, member in vars(a_class).items():
            if not name.startswith("_"):
                yield f"{a_class.__name__}.{name}", getattr(a_class, name, member)


class Examples(unittest.TestCase):
    def test_docstrings_run(self):
        runner, count = doctest.DocTestRunner(verbose=False), 0
        with invar.Hub(1) as hub, invar.Communicator.join(hub.id, 0, 1) as comm:
            for name, thing in documented():
                names = {"comm": comm, "invar": invar, "np": np}
                text = inspect.getdoc(thing) or ""
                test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
                runner.run(test)
                count += len(test.examples)
        self.assertEqual(runner.summarize(verbose=False).failed, 0)
        self.assertGreater(count, 30)

    def test_programs_of_pages_run(self):
        ran = 0
        for page in PAGES:
            for block in re.findall(BLOCK, page.read_text()):
                if "torch" in block and not importlib.util.find_spec("torch"):
                    continue
                outputs = run_on_two_ranks(block)
                for status, output in outputs:
                    self.assertEqual(status, 0, f"{page}:\n{block}\n{output}")
                if "print" in block:
                    self.assertIn("[3. 3. 3.]", outputs[1][1])
                ran += 1
        self.assertGreaterEqual(ran, len(PAGES))

    def test_everything_public_has_a_docstring(self):
        for name, thing in documented():
            self.assertTrue(inspect.getdoc(thing), name)

    def test_every_function_has_an_example(self):
        # The first needs a launcher, and the others a peer that does its part.
        without = {"Communicator.from_env"}
        without |= {f"Communicator.start_{name}" for name in ("send", "recv")}
        without |= {f"Group.{name}" for name in ("send", "recv")}
        for name, thing in documented():
            if "." in name and not name.startswith("Error.") and name not in without:
                self.assertIn(">>>", inspect.getdoc(thing), name)


class Stubs(unittest.TestCase):
    """`_invar.pyi` is written by hand."""

    def setUp(self):
        self.stubs = ast.parse((PACKAGE / "_invar.pyi").read_text())
        self.classes = {
            node.name: node
            for node in self.stubs.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        }

    def test_each_class_and_member_is_there(self):
        here = {name for name, thing in vars(_invar).items() if inspect.isclass(thing)}
        here -= {"_Lent"}
        self.assertEqual(set(self.classes), here)
        special = {"__enter__", "__exit__", "__await__"}
        for name, node in self.classes.items():
            stubs = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            members = vars(getattr(_invar, name))
            wanted = {member for member in members if not member.startswith("_")}
            wanted |= {member for member in members if member in special}
            # Every class has this one, also a class that only methods make.
            self.assertEqual(stubs - {"__new__"}, wanted, name)

    def test_each_signature_is_the_same(self):
        checked = 0
        for name, node in self.classes.items():
            for member in node.body:
                if not isinstance(member, ast.FunctionDef) or member.decorator_list[:1] and (
                    getattr(member.decorator_list[0], "id", "") == "property"
                ):
                    continue
                owner = getattr(_invar, name)
                thing = owner if member.name == "__new__" else getattr(owner, member.name)
                if not getattr(thing, "__text_signature__", None):
                    continue
                real = inspect.signature(thing)
                names = [p for p in real.parameters if p not in ("self", "cls")]
                arguments = member.args
                stub = [a.arg for a in arguments.args if a.arg not in ("self", "cls")]
                stub += [arguments.vararg.arg] if arguments.vararg else []
                stub += [a.arg for a in arguments.kwonlyargs]
                self.assertEqual(stub, names, f"{name}.{member.name}")
                defaults = [p.default for p in real.parameters.values() if p.default is not p.empty]
                given = [*arguments.defaults, *(d for d in arguments.kw_defaults if d)]
                self.assertEqual([ast.literal_eval(d) for d in given], defaults, member.name)
                checked += 1
        self.assertGreater(checked, 40)


if __name__ == "__main__":
    unittest.main()
