"""How is a step computed while the loop plans the next one?

On a thread of its own, in the order of the launches; native code lets go of the interpreter, so that both go on at once.
Used with `depth` 2 or more. What the runner raises is raised by `collect`, with the traceback of where it happened.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from homebox.engine.core import MeasuredRunner
from homebox.engine.plan import StepPlan, StepResult


class Ahead:
    def __init__(self, runner: MeasuredRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")

    def launch(self, plan: StepPlan) -> Future[StepResult]:
        return self._thread.submit(self._compute, plan)

    def collect(self, handle: Future[StepResult]) -> StepResult:
        return handle.result()

    def measure(self, tokens: int) -> float:
        return self._runner.measure(tokens)

    def _compute(self, plan: StepPlan) -> StepResult:
        return self._runner.collect(self._runner.launch(plan))
