"""bench/gpu_check without a GPU: what it does when something is missing, fails, or takes too long."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import sys
import tempfile
import time
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu_check"
sys.dont_write_bytecode = True


def load():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(module)
    return module


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.script = load()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)

    def check(self, seconds=60.0, dry_run=False):
        return self.script.Check(argparse.Namespace(
            seconds=seconds, dry_run=dry_run, jobs=1, deps=self.path / "deps", output=self.path / "out" / "result.json"))

    def quietly(self, work):
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
            return work(), said.getvalue()

    def result(self):
        return json.loads((self.path / "out" / "result.json").read_text())

    def test_it_cannot_begin_without_what_prepare_makes(self):
        status, _ = self.quietly(self.check(dry_run=True).all)
        self.assertEqual(status, 2)
        self.assertIn("bench/gpu_check --prepare", self.result()["problems"][0])
        self.assertFalse(self.result()["complete"])

    def test_prepare_copies_the_headers_and_says_what_is_missing(self):
        self.script.PREFIX, self.script.HEADERS = self.path / "usr", ("include/eigen3",)
        status, said = self.quietly(lambda: self.script.prepare(self.path / "deps"))
        self.assertEqual(status, 2)
        self.assertIn("usr/include/eigen3 is missing", said)
        (self.path / "usr" / "include" / "eigen3" / "Eigen").mkdir(parents=True)
        (self.path / "usr" / "include" / "eigen3" / "Eigen" / "Core").write_text("// new")
        for _ in range(2):  # again over what is there
            status, _ = self.quietly(lambda: self.script.prepare(self.path / "deps"))
            self.assertEqual(status, 0)
        self.assertEqual((self.path / "deps" / "include" / "eigen3" / "Eigen" / "Core").read_text(), "// new")

    def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(self):
        mark = self.path / "late"
        start = time.monotonic()
        status, output = self.check(seconds=3).run(["sh", "-c", f"echo begun; (sleep 6; touch {mark}) & wait"], "test")
        self.assertLess(time.monotonic() - start, 5)
        self.assertIsNone(status)
        self.assertEqual(output, "begun\n")
        time.sleep(5)
        self.assertFalse(mark.exists())
        self.assertEqual(self.check(seconds=0).run(["true"], "test"), (None, "no time was left"))

    def test_figures_that_came_before_a_failure_are_kept(self):
        check = self.check()
        command = ["sh", "-c", 'echo \'{"step": 1.5}\'; echo broken >&2; exit 3']
        passed, said = self.quietly(lambda: check.part("troop", lambda: check.figures(command, "troop")))
        self.assertFalse(passed)
        self.assertEqual(self.result()["troop"], [{"step": 1.5}])
        self.assertIn("troop: ended with 3 after 1 figures", self.result()["problems"][0])
        self.assertIn("broken", said)

    def test_tests_that_fail_or_do_not_run_are_problems(self):
        check = self.check()
        check.build = self.path
        (self.path / "tests" / "gpu").mkdir(parents=True)
        says = "[doctest] test cases: {0} | {1} passed | {2} failed | 0 skipped"
        for name, text, status in (("gpu_backend", says.format(3, 3, 0), 0), ("gpu_kernels", says.format(3, 2, 1), 1),
                                   ("gpu_network", "skipped: no GPU", 77)):
            program = check.program(name)
            program.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
            program.chmod(0o755)
        self.quietly(lambda: check.part("tests", check.test))
        self.assertEqual(self.result()["tests"], {"gpu_backend": {"status": 0, "cases": 3, "passed": 3},
                                                  "gpu_kernels": {"status": 1, "cases": 3, "passed": 2},
                                                  "gpu_network": {"status": 77, "cases": 0, "passed": 0}})
        self.assertEqual(self.result()["problems"][-1], "tests: failed: gpu_kernels, gpu_network")

    def test_pytorchs_cudnn_serves_where_the_system_has_none(self):
        check = self.check()
        cudnn = self.path / "site" / "nvidia" / "cudnn"
        (cudnn / "include").mkdir(parents=True)
        (cudnn / "lib").mkdir()
        (cudnn / "include" / "cudnn.h").touch()
        (cudnn / "lib" / "libcudnn.so.9").touch()
        self.script.SYSTEM_HEADERS = (self.path,)
        sys.path.insert(0, str(self.path / "site"))
        self.addCleanup(sys.path.remove, str(self.path / "site"))
        self.assertEqual(check.cudnn(), [f"-DTroopCuda_CUDNN_INCLUDE_DIR={cudnn / 'include'}",
                                         f"-DTroopCuda_CUDNN_LIBRARY={cudnn / 'lib' / 'libcudnn.so.9'}"])
        self.assertTrue(check.environment()["LD_LIBRARY_PATH"].startswith(str(cudnn / "lib")))
        self.script.SYSTEM_HEADERS = (cudnn / "include",)
        self.assertEqual(check.cudnn(), [])


if __name__ == "__main__":
    unittest.main()
