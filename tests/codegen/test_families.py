"""Every rule is there for whoever plans a segment, not only after someone asked ``supports``."""

import subprocess
import sys

COUNT = "import dovetail.schedule.plan; from dovetail.lower.rules import RULES; print(len(RULES))"


def test_planning_alone_has_every_rule():
    import dovetail.backends.cpu.support  # noqa: F401
    from dovetail.lower.rules import RULES

    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(RULES)
