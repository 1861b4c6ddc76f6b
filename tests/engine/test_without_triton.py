"""An engine on a CPU computes without Triton, also where it is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from homebox.engine import worker
from homebox.engine.build import build
from homebox.wire.frames import Sampling, Start, StepDone, Submit

frames = []
engine, ready = build(Start(model_dir=sys.argv[1], max_running=2, kv_bytes=1 << 19), frames.append, lambda *_: None)
engine.submit(Submit("a", "ann", [5, 6, 7], Sampling(max_tokens=2, temperature=1.0, top_p=0.9)))
while engine.step():
    pass
print(sum(len(p.tokens) for f in frames if isinstance(f, StepDone) for p in f.progress))
print(*(name for name in sys.modules if name.split(".")[0] == "triton" or name.startswith("homebox.kernels.triton")))
"""


def test_an_engine_on_a_cpu_never_imports_triton(tiny_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tiny_model)], capture_output=True, text=True, timeout=200
    )
    assert done.stdout.split("\n") == ["2", "", ""], done.stderr
