"""Builds the wheel with maturin, and says at once what it needs.

maturin itself downloads a Rust toolchain into a temporary folder where it finds none, compiles for ten minutes of a
processor, and throws the toolchain away. Whoever has no Rust is better served by a sentence.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from maturin import *  # noqa: F403

# `rust-version` in the Cargo.toml of the workspace; `tests/test_documents.py` compares them.
MINIMUM = (1, 90)

NEEDED = """
memplan is built from source here, which needs Rust {minimum} or newer ({found}).

  - Get Rust:  https://rustup.rs, or `apt install rustup && rustup default stable`. `cargo` must be in PATH.
    The build then takes about ten minutes of one processor, and a C compiler as the linker.
  - Or install a wheel, which needs no Rust: `scripts/wheels.sh` of the repository builds one on another machine.
"""


def _need_rust() -> None:
    """Ends the build if there is no toolchain that can compile memplan."""
    rustc, cargo = shutil.which("rustc"), shutil.which("cargo")
    if rustc is None or cargo is None:
        found = f"no {'rustc' if cargo else 'cargo'} in PATH"
    else:
        said = subprocess.run([rustc, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"rustc (\d+)\.(\d+)", said)
        if version is None:
            found = f"`{rustc} --version` gives no version"
        elif tuple(map(int, version.groups())) >= MINIMUM:
            return
        else:
            found = f"found {said.strip()}"
    sys.exit(NEEDED.format(minimum=".".join(map(str, MINIMUM)), found=found))


def get_requires_for_build_wheel(config_settings=None):
    _need_rust()
    return []


# The archive of the sources lists the crates that the package needs, and cargo knows them.
get_requires_for_build_sdist = get_requires_for_build_editable = get_requires_for_build_wheel
