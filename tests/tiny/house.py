"""A model folder that a test spoils, and the command line before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ostro.core.errors import OstroError
from ostro.entrypoints.cli import main

GREEDY = ("-i", "hello", "--temperature", "0", "-n", "3")


@dataclass
class House:
    """A model folder under test and the command line before it."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    answer: str = ""

    def run(self, *words: str, model: object = None) -> tuple[int, str, str]:
        """`ostro run` of the folder, or of another model: exit code, output, errors."""
        self.capsys.readouterr()
        try:
            code = main(["run", "-m", str(model or self.folder), *GREEDY, *words])
        except SystemExit as left:
            assert isinstance(left.code, int)
            code = left.code
        return code, *self.capsys.readouterr()

    def refused(
        self, kind: type[OstroError], *said: str, words: tuple[str, ...] = (), model: object = None
    ) -> None:
        """It ends with the kind's exit code and one line that says all of `said`."""
        code, out, err = self.run(*words, model=model)
        assert code == kind.exit_code != 0 and not out
        assert err.startswith("ostro: ") and err.count("\n") == 1 and "Traceback" not in err
        assert not [text for text in said if text not in err], err
