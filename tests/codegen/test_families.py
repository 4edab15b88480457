"""The rules are what ``families`` lists, whoever else has been imported."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from dovetail import lower
from dovetail.lower import all_rules
from dovetail.lower.families import FAMILIES
from dovetail.lower.rules import declared_in

COUNT = "from dovetail.lower import all_rules; print(len(all_rules()))"


def test_the_rules_do_not_depend_on_what_is_imported():
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(all_rules())


def test_no_operator_has_two_rules():
    names = Counter(
        name for family in FAMILIES for name, _ in declared_in(f"dovetail.lower.{family}")
    )
    assert [name for name, count in names.items() if count > 1] == []
    assert set(names) == set(all_rules())


def test_every_module_that_declares_rules_is_a_family():
    folder = Path(lower.__file__).parent
    declaring = {path.stem for path in folder.glob("*.py") if "\n@rule(" in path.read_text()}
    assert declaring == set(FAMILIES)
