#!/usr/bin/env bash
# Builds what is published of the Python package into a folder: the archive of the sources, and wheels.
#
#   scripts/wheels.sh [FOLDER] [TARGET ...]      FOLDER is `dist`; TARGET is `sdist`, or a target of Rust:
#
#   x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu   on Linux, with any C library: zig links against that of
#                                                         manylinux_2_17, so that the wheel runs on glibc 2.17 (2012)
#   x86_64-apple-darwin, aarch64-apple-darwin             on macOS, with Xcode's command line tools; on Linux zig links them
#   x86_64-pc-windows-msvc, aarch64-pc-windows-msvc       on Windows (Git Bash), with the build tools of Visual Studio
#   x86_64-pc-windows-gnu                                 on Linux, with zig; not tried to the end (RELEASING.md)
#
# Without a TARGET: `sdist` and the target of this machine. One wheel serves CPython 3.10 and all newer versions (abi3).
# Needs Rust (`rustup target add TARGET` for another machine's), Python 3.10 and pip, which fetches maturin and zig. What zig
# links for another system can only be tested there.
# .github/workflows/wheels.yml runs this on all three systems.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')
targets=("${@:2}")
[ ${#targets[@]} -gt 0 ] || targets=(sdist "$host")

tools=target/wheels-venv
case $host in
    *-windows-*) bin=$tools/Scripts; python -m venv "$tools" ;;
    *)           bin=$tools/bin; python3 -m venv "$tools" ;;
esac
"$bin/python" -m pip install --quiet --disable-pip-version-check "maturin>=1.7,<2" "ziglang>=0.13,<0.18"
PATH="$PWD/$bin:$PATH"

fail() { echo "$1" >&2; exit 2; }

# maturin 1.16 exports a module in a package from libraries for Windows by its dotted name, which is no symbol: this `cargo`
# mends the list of exports before it builds.
exports() {
    mkdir -p "$tools/exports"
    printf '#!/bin/sh\nsed -i "s/ PyInit_.*\\./ PyInit_/" "%s"/maturin/*.def 2> /dev/null\nexec "%s" "$@"\n' \
        "${CARGO_TARGET_DIR:-$PWD/target}" "$(command -v cargo)" > "$tools/exports/cargo"
    chmod +x "$tools/exports/cargo"
    echo "$PWD/$tools/exports"
}

for target in "${targets[@]}"; do
    case $target in
        sdist)            (cd python && maturin sdist --out "$out") ;;
        *-unknown-linux-gnu)
            (cd python && maturin build --profile dist --zig --target "$target" --compatibility manylinux_2_17 --out "$out") ;;
        *-apple-darwin | *-pc-windows-msvc)
            case $host/$target in
                *"${target#*-}/"*)          zig= ;;
                *-linux-gnu/*-apple-darwin) zig=--zig ;;
                *) fail "$target: build this wheel on such a system; here is $host" ;;
            esac
            (cd python && maturin build --profile dist ${zig:+$zig} --target "$target" --out "$out") ;;
        *-pc-windows-gnu)
            path=$(exports):$PATH
            (cd python && PATH=$path maturin build --profile dist --zig --target "$target" --out "$out") ;;
        *) fail "$target: not a target that this script knows; see its head" ;;
    esac
done
ls -l "$out"
