"""The real worker, except that computing one certain token kills the process, as a defect in a kernel would."""

from __future__ import annotations

import os
import signal
import sys

from homebox.engine import worker
from homebox.engine.plan import StepPlan
from homebox.engine.runner import Handle, Runner

POISON = 4242


class FragileRunner(Runner):
    def launch(self, plan: StepPlan) -> Handle:
        if any(POISON in row.tokens for row in plan.rows):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().launch(plan)


if __name__ == "__main__":
    import homebox.engine.compute

    homebox.engine.compute.Runner = FragileRunner  # type: ignore[misc]
    sys.exit(worker.main())
