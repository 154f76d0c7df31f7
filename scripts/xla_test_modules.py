#!/usr/bin/env python3
"""Takes the HLO modules out of the tests of a checkout of XLA: a set of cases to compare verdicts on.

    xla_test_modules.py GIT_DIR OUT [--commit HEAD] [--below xla]

Modules stand in raw strings of C++ (R"(...)") and in .hlo, .hlotxt and .txt files, several to a file where lines of
`// -----` part them. Each distinct text becomes OUT/HASH.hlo; OUT/index.tsv says for each where it was found and in
which test, and whether that test expects the verifier to refuse it. Computations without a header count as modules, as they
do for XLA's parser. A placeholder for an element type (`$0[2,3]`) becomes f32; texts with others (or in a StrFormat)
are left out, as are files that are not in the checkout.

OUT must lie outside the repository: the modules are XLA's, not ours.
"""

import argparse
import collections
import hashlib
import pathlib
import re
import subprocess
import sys

SOURCES = (".cc", ".h", ".hlo", ".hlotxt", ".txt", ".py")
RAW_STRING = re.compile(r'R"([^()\\\s]{0,16})\((.*?)\)\1"', re.S)
PYTHON_STRING = re.compile(r'()"""(.*?)"""', re.S)
TEST = re.compile(r"^(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)|^XLA_TEST_[FP]\(\s*(\w+),\s*(\w+)\)", re.M)
BEGINS_MODULE = re.compile(r"^\s*(?:HloModule\s|ENTRY\s|ROOT\s)", re.M)
ELEMENT_TYPE = re.compile(r"\$(?:\d|\{\w+\})(?=\[)")
PLACEHOLDER = re.compile(r"\$(?:\w|\{)")
FILLED_IN = re.compile(r"(?:StrFormat|Substitute|StrReplaceAll|StrCat|Sprintf|Printf|ReplaceAll)\(\s*$")
REFUSED = re.compile(r"EXPECT_FALSE\(\s*status|ASSERT_FALSE\(\s*status|(?:EXPECT|ASSERT)_THAT\(\s*status|StatusIs\(")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("git_dir")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--below", default="xla")
    args = parser.parse_args()
    if pathlib.Path(__file__).resolve().parent.parent in [*args.out.resolve().parents, args.out.resolve()]:
        sys.exit("OUT must lie outside the repository")
    args.out.mkdir(parents=True, exist_ok=True)

    found, counts = {}, collections.Counter()
    for path, text in files(args.git_dir, args.commit, args.below):
        for line, test, refused, module in modules(path, text):
            digest = hashlib.sha256(module.encode()).hexdigest()[:16]
            if digest not in found:
                found[digest] = (path, line, test, refused)
                (args.out / f"{digest}.hlo").write_text(module)
                counts["/".join(path.split("/")[:2])] += 1
    with open(args.out / "index.tsv", "w") as index:
        index.write("module\tpath\tline\ttest\trefused\n")
        for digest, (path, line, test, refused) in sorted(found.items()):
            index.write(f"{digest}\t{path}\t{line}\t{test}\t{int(refused)}\n")
    print(f"{len(found)} modules: " + ", ".join(f"{n} {folder}" for folder, n in counts.most_common()))


def files(git_dir, commit, below):
    """(path, text) of every source below a folder that may hold modules, in order of their paths."""
    git = ["git", "--git-dir", git_dir]
    listed = subprocess.run([*git, "ls-tree", "-r", commit, below + "/"], capture_output=True, text=True, check=True)
    blobs = [(row.split("\t")[1], row.split()[2]) for row in listed.stdout.splitlines() if row.endswith(SOURCES)]
    cat = subprocess.Popen([*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for path, blob in blobs:
        cat.stdin.write(f"{blob}\n".encode())
        cat.stdin.flush()
        header = cat.stdout.readline().split()
        if header[-1] == b"missing":
            continue
        text = cat.stdout.read(int(header[2]) + 1)[:-1].decode(errors="replace")
        if "ENTRY" in text or "HloModule" in text:
            yield path, text
    cat.stdin.close()
    cat.wait()


def modules(path, text):
    """(line, test, refused by the verifier, text) of every module in a file."""
    if path.endswith((".cc", ".h", ".py")):
        tests = [(match.start(), match) for match in TEST.finditer(text)]
        for raw in (PYTHON_STRING if path.endswith(".py") else RAW_STRING).finditer(text):
            module = ELEMENT_TYPE.sub("f32", raw[2])
            if FILLED_IN.search(text[max(0, raw.start() - 80) : raw.start()]) or not is_module(module):
                continue
            before = [i for i, (at, _) in enumerate(tests) if at < raw.start()]
            name, refused = "", False
            if before:
                at, match = tests[before[-1]]
                end = tests[before[-1] + 1][0] if before[-1] + 1 < len(tests) else len(text)
                name = ".".join(part for part in match.groups() if part)
                refused = path.endswith("hlo_verifier_test.cc") and bool(REFUSED.search(text, raw.end(), end))
            yield text.count("\n", 0, raw.start()) + 1, name, refused, module
        return
    line = 1
    for part in re.split(r"^// -----.*$", text, flags=re.M):
        if is_module(part):
            yield line, "", False, part
        line += part.count("\n")


def is_module(text):
    return bool(BEGINS_MODULE.search(text)) and not PLACEHOLDER.search(text)


if __name__ == "__main__":
    main()
