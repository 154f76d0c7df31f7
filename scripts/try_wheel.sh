#!/usr/bin/env bash
# Installs a wheel in a fresh Debian without a compiler, and runs the README's lines there.
#
#   scripts/try_wheel.sh WHEEL [SUITE [FOLDER]]      SUITE is `bookworm`, which was oldstable in 2026
#
# Needs root, debootstrap, and the registries of Debian and Python; makes a root file system of 400 MB in FOLDER (a
# temporary one, which is deleted, unless you name one, which is used again).
set -euo pipefail
wheel=$(realpath "$1")
suite=${2:-bookworm}
root=${3:-$(mktemp -d)}
repository=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 3 ] || trap 'rm -rf "$root"' EXIT

[ -x "$root/usr/bin/python3" ] ||
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$suite" "$root" > "$root.log"
# The registry is reached as here: pip's settings and the certificates that it trusts.
for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || cp "$file" "$root$file"
done
mkdir -p "$root/try"
rm -f "$root"/try/*.whl
cp "$wheel" "$repository"/examples/gpt_training_step.hlo.txt.gz "$root/try/"
# The lines of the package's README as a program, and the commands of the repository's.
sed -n '/^```python$/,/^```$/p' "$repository/python/README.md" | sed '/^```$/q' | grep -v '^```' > "$root/try/readme.py"

inside() { chroot "$root" /usr/bin/env -i PATH=/try/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 JAX_PLATFORMS=cpu "$@"; }
said() { printf '\n$ %s\n' "$*"; }

inside sh -c '. /etc/os-release; echo "$PRETTY_NAME, $(ldd --version | head -1), $(python3 --version)"'
for tool in cc gcc clang cargo rustc; do
    ! inside sh -c "command -v $tool" || { echo "there is a compiler: $tool" >&2; exit 1; }
done
echo "no C compiler, no Rust"
inside python3 -m venv /try/venv
said pip install "$(basename "$wheel")" jax
inside sh -c 'pip uninstall --quiet --yes memplan 2>/dev/null || true'
inside sh -c 'cd /try && pip install --quiet --disable-pip-version-check --only-binary :all: ./memplan-*.whl jax'
said memplan --version
inside memplan --version
said memplan estimate gpt_training_step.hlo.txt.gz --compiler xla-gpu --top 4
inside sh -c 'cd /try && memplan estimate gpt_training_step.hlo.txt.gz --compiler xla-gpu --top 4' | head -20
said python readme.py
inside sh -c 'cd /try && python readme.py'
