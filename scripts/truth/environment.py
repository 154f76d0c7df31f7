#!/usr/bin/env python3
"""Makes a Python environment with XLA's compilers for CPU, GPU and TPU (6 GB, minutes), once, and prints its python.

usage: environment.py [VERSION]     VERSION of JAX: 0.12.0.1 (the default; Python 3.12 or newer) or 0.10.2 (Python 3.11 or newer)

The environment is ~/.cache/memplan-xla-venv-VERSION, or MEMPLAN_XLA_VENV-VERSION. No compiler needs its device.
"""

import os
import pathlib
import shutil
import subprocess
import sys

NEWEST = '0.12.0.1'
PACKAGES = ['libtpu==0.0.52', 'numpy']


def environment(version=NEWEST):
    """The python of the environment with a version of JAX."""
    known = os.environ.get('MEMPLAN_XLA_VENV', pathlib.Path.home() / '.cache' / 'memplan-xla-venv')
    venv = pathlib.Path(f'{known}-{version}')
    if not (venv / 'ready').exists():
        subprocess.run([newest_python(), '-m', 'venv', venv], check=True)
        subprocess.run([venv / 'bin' / 'pip', 'install', '--quiet', f'jax[cuda12]=={version}', *PACKAGES], check=True)
        (venv / 'ready').touch()
    return venv / 'bin' / 'python'


def newest_python():
    """The newest Python of this machine that JAX has packages for."""
    pyenv = sorted((pathlib.Path.home() / '.pyenv' / 'versions').glob('3.1[1-3].*/bin/python3'), key=release)
    on_path = filter(None, map(shutil.which, ['python3.13', 'python3.12', 'python3.11']))
    return next(iter([*reversed(pyenv), *on_path]), sys.executable)


def release(python):
    return tuple(map(int, python.parent.parent.name.split('.')))


if __name__ == '__main__':
    print(environment(*sys.argv[1:]))
