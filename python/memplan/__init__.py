"""Memory planning for JAX programs: what a program will need, and a rewritten one that needs less.

``memplan.jit`` is ``jax.jit`` for programs that need much memory; ``memplan.estimate`` and ``memplan.fits`` say what
XLA will need on a machine, without it; ``memplan.plan`` and ``memplan.compile`` give every buffer an address.
"""

from memplan._api import check, compile, estimate, fits, pack, plan, rewrite
from memplan._jit import jit
from memplan._lives import Life, Lives, snapshot
from memplan._lowering import FallbackWarning, LimitWarning
from memplan._memplan import VERSION as __version__
from memplan._memplan import DoesNotFit, Error, InputError, Module, Refuted
from memplan._policy import Checkpoint, Policy, checkpoints, policy
from memplan._programs import read
from memplan._resident import Resident, largest, resident
from memplan._results import Estimate, Fit, Holder, Packing, Plan, Proof, Rewritten, Step, Totals, load

__all__ = [
    "Checkpoint",
    "DoesNotFit",
    "Error",
    "Estimate",
    "FallbackWarning",
    "Fit",
    "Holder",
    "InputError",
    "Life",
    "LimitWarning",
    "Lives",
    "Module",
    "Packing",
    "Plan",
    "Policy",
    "Proof",
    "Refuted",
    "Resident",
    "Rewritten",
    "Step",
    "Totals",
    "__version__",
    "check",
    "checkpoints",
    "compile",
    "estimate",
    "fits",
    "jit",
    "largest",
    "load",
    "pack",
    "plan",
    "policy",
    "read",
    "resident",
    "rewrite",
    "snapshot",
]
