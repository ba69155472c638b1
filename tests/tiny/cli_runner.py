"""Run `ostro run` on a model folder under test and check its errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ostro.core.errors import OstroError
from ostro.entrypoints.cli import main

GREEDY = ("-i", "hello", "--temperature", "0", "-n", "3")


@dataclass
class CliRunner:
    """A model folder under test, and the captured output of the commands."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *options: str, model: object = None) -> tuple[int, str, str]:
        """Run `ostro run` on the folder or on `model`. Return exit code, stdout and stderr."""
        self.capsys.readouterr()
        try:
            code = main(["run", "-m", str(model or self.folder), *GREEDY, *options])
        except SystemExit as error:
            assert isinstance(error.code, int)
            code = error.code
        return code, *self.capsys.readouterr()

    def assert_rejected(
        self,
        kind: type[OstroError],
        *texts: str,
        options: tuple[str, ...] = (),
        model: object = None,
    ) -> None:
        """Assert that the run prints one line with all `texts` and exits with the kind's code."""
        code, out, err = self.run(*options, model=model)
        assert code == kind.exit_code != 0 and not out
        assert err.startswith("ostro: ") and err.count("\n") == 1 and "Traceback" not in err
        assert not [text for text in texts if text not in err], err
