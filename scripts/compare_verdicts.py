#!/usr/bin/env python3
"""Compares memplan's verdict on HLO texts with that of XLA's parser and verifier, and round trips with XLA's reading.

    compare_verdicts.py FOLDER [--cache FILE] [--show N] [--only CLASS]

FOLDER is what xla_test_modules.py made, or any folder of *.hlo. XLA is jaxlib's parser and the verifier in its GPU
plugin, so this needs `pip install "jax[cuda12]"`; memplan is the example `verdicts` of crates/hlo, built in target/.
XLA's answers are kept in the cache by content, so that only what changed is asked again.

Classes of disagreement:
    we-refuse       XLA's parser and verifier accept, memplan does not
    parser-refuses  XLA's parser refuses, memplan accepts
    verify-refuses  XLA's verifier refuses, memplan accepts
    text-differs    XLA reads our text to another HloModuleProto than the original
    proto-differs   XLA reads our protobuf to another HloModuleProto, ids aside

verdict_exceptions.tsv beside this script lists the disagreements that stay, each with its reason: a class, a pattern
that the words of either side match or the hash of the text, and the reason. The exit status is 1 if others are left.
"""

import argparse
import collections
import hashlib
import json
import multiprocessing
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile

from normal_proto import normal
from own_process import in_child, in_place

ELISION = re.compile(rb"\{\s*\.\.\.\s*\}")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path, help="where XLA's answers are kept (default: FOLDER/answers.jsonl)")
    parser.add_argument("--show", type=int, default=5, help="how many of each class to show")
    parser.add_argument("--only", help="look at one class")
    args = parser.parse_args()
    answers = Answers(args.cache or args.folder / "answers.jsonl")
    exceptions = [line.split("\t") for line in (ROOT / "scripts/verdict_exceptions.tsv").read_text().splitlines()[1:]]

    with tempfile.TemporaryDirectory() as out:
        ours = verdicts(args.folder, out)
        texts = {name: (args.folder / name).read_bytes() for name in ours}
        printed = {name: read(pathlib.Path(out) / name) for name in ours}
        protos = {name: read((pathlib.Path(out) / name).with_suffix(".pb")) for name in ours}
    answers.ask([("verify", text) for text in texts.values()])
    accepted = [name for name in ours if answers.of("verify", texts[name])["proto"] and printed[name]]
    pairs = [("text", texts), ("text", printed), ("proto", protos)]
    answers.ask([(kind_of(kind, texts[name]), contents[name]) for kind, contents in pairs for name in accepted])
    unread = [name for name in accepted if refusal(answers.of(kind_of("proto", texts[name]), protos[name]))]
    answers.ask([("own proto", texts[name]) for name in unread])

    found, listed = collections.defaultdict(list), collections.Counter()
    for name, (stage, why) in ours.items():
        for kind, theirs in disagreements(answers, stage, texts[name], printed[name], protos[name]):
            reason = reason_for(exceptions, kind, name, why, theirs)
            if reason:
                listed[kind, reason] += 1
            else:
                found[kind].append((name, stage, why, theirs))
    refused = sum(stage != "accept" for stage, _ in ours.values())
    print(f"{len(ours)} texts: memplan refuses {refused}, XLA {sum(refusal(answers.of('verify', t)) for t in texts.values())}")
    for (kind, reason), count in sorted(listed.items()):
        print(f"  listed: {count:4} {kind}: {reason}")
    for kind, rows in sorted(found.items()):
        if args.only in (None, kind):
            print(f"{len(rows)} {kind}")
            for name, stage, why, theirs in rows[: args.show]:
                print(f"  {name} [{stage} {why[:150]}] [XLA {' '.join(theirs.split())[:230]}]")
    sys.exit(1 if found else 0)


def disagreements(answers, stage, text, printed, proto):
    """(class, XLA's words) of everything that memplan and XLA disagree about."""
    theirs = answers.of("verify", text)
    if not refusal(theirs):
        if stage != "accept":
            yield "we-refuse", ""
    elif stage == "accept" and not theirs["crash"]:
        yield ("verify-refuses" if theirs["proto"] else "parser-refuses"), theirs["error"]
    if theirs["proto"] and printed:
        original = answers.of(kind_of("text", text), text)["proto"]
        for kind, ours in (("text", printed), ("proto", proto)):
            again = answers.of(kind_of(kind, text), ours)
            own = answers.of("own proto", text) if kind == "proto" and refusal(again) else {"error": ""}
            # There are texts whose protobuf XLA does not read, whoever writes it.
            if again["proto"] != original and not refusal(own):
                yield f"{kind}-differs", again["error"]


def kind_of(kind, original):
    """What to ask of a round trip. XLA's parser makes elements up where a constant leaves them out; memplan does not."""
    return f"{kind} without literals" if ELISION.search(original) else kind


def refusal(answer):
    return bool(answer["error"])


def reason_for(exceptions, kind, name, ours, theirs):
    for which, pattern, reason in exceptions:
        if which == kind and (re.match(pattern, name) or re.search(pattern, ours) or re.search(pattern, theirs)):
            return reason
    return None


def verdicts(folder, out):
    """{file: (stage that refuses or "accept", why)}"""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / "examples/verdicts" for profile in ("release", "debug")]
    built = sorted((path for path in built if path.exists()), key=lambda path: path.stat().st_mtime)
    if not built:
        sys.exit("build it first: cargo build -p memplan-hlo --example verdicts")
    run = subprocess.run([built[-1], folder, out], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return {name: (stage, why) for name, stage, why in (line.split("\t") for line in run.stdout.splitlines())}


def read(path):
    return path.read_bytes() if path.exists() else b""


class Answers:
    """XLA's answers by content: {"proto": hash of the normal form, or "", "error": its words, "crash": bool}."""

    def __init__(self, path):
        self.path, self.known = path, {}
        if path.exists():
            for line in path.read_text().splitlines():
                key, answer = json.loads(line)
                self.known[key] = answer

    def of(self, kind, content):
        return self.known[self.key(kind, content)]

    def key(self, kind, content):
        return f"{kind} {hashlib.sha256(content).hexdigest()[:24]}"

    def ask(self, questions):
        new = {self.key(*question): question for question in questions}
        new = [(key, *question) for key, question in new.items() if key not in self.known]
        if not new:
            return
        n_workers = min(os.cpu_count(), len(new))
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        shares = [new[i::n_workers] for i in range(n_workers)]
        workers = [None] * n_workers
        for i, share in enumerate(shares):
            workers[i] = start(context, queue, i, share)
        # Which question each worker is at: on a crash the one that is next is the culprit.
        at = [0] * n_workers
        open_workers = set(range(n_workers))
        with open(self.path, "a") as file:
            while open_workers:
                if queue.empty():
                    for i in list(open_workers):
                        workers[i].join(0.05)
                        if workers[i].is_alive() or not queue.empty():
                            continue
                        if at[i] < len(shares[i]):
                            crash = {"proto": "", "error": "ends its process", "crash": True}
                            self.keep(file, shares[i][at[i]][0], crash)
                            at[i] += 1
                        if at[i] < len(shares[i]):
                            workers[i] = start(context, queue, i, shares[i][at[i] :])
                        else:
                            open_workers.discard(i)
                    continue
                i, key, answer = queue.get()
                self.keep(file, key, answer)
                at[i] += 1

    def keep(self, file, key, answer):
        self.known[key] = answer
        file.write(json.dumps([key, answer]) + "\n")
        file.flush()


def start(context, queue, number, share):
    worker = context.Process(target=work, args=(queue, number, share), daemon=True)
    worker.start()
    return worker


def work(queue, number, share):
    """Answers questions until there are no more, or XLA ends the process."""
    from jaxlib import _hlo

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # A few characters can ask for gigabytes of constants: such a question ends the process, as a crash does.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    verifier = None
    for key, kind, content in share:
        signal.alarm(60)
        # Elided constants are filled from a counter that goes on from module to module: begin it anew.
        attempt = in_child if b"..." in content else in_place
        proto, error = attempt(lambda: proto_of(_hlo, kind.split()[0], content))
        crash = error == "ends its process"
        if proto and kind == "verify":
            if verifier is None:
                verifier = VerifierProcess()
            error = verifier.refusal(proto, content)
            crash = error == "ends its process"
        queue.put((number, key, {"proto": normal_hash(proto, kind) if proto else "", "error": error, "crash": crash}))


def proto_of(_hlo, kind, content):
    read = _hlo.HloModule.from_serialized_hlo_module_proto
    if kind == "proto":
        return read(content).as_serialized_hlo_module_proto()
    proto = _hlo.hlo_module_from_text(content.decode(errors="replace")).as_serialized_hlo_module_proto()
    return read(proto).as_serialized_hlo_module_proto() if kind == "own" else proto


def normal_hash(proto, kind):
    # Taking apart gigabytes of constants would take long.
    with_literals = not kind.endswith("without literals")
    short = normal(proto, with_literals) if not with_literals or len(proto) < 1 << 28 else proto
    return hashlib.sha256(short).hexdigest()[:24]


class VerifierProcess:
    """The verifier in a process of its own, started again when XLA ends it."""

    def __init__(self):
        self.process = None

    def refusal(self, proto, text):
        header = text.split(b"\n\n")[0]
        counts = [int((re.search(name + rb"=(\d+)", header) or [0, 1])[1]) for name in (b"replica_count", b"num_partitions")]
        if self.process is None:
            here = pathlib.Path(__file__).parent / "xla_verifier.py"
            self.process = subprocess.Popen([sys.executable, here], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.process.stdin.write(json.dumps([len(proto), *counts]).encode() + b"\n" + proto)
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if answer:
            return json.loads(answer)
        self.process.wait()
        self.process = None
        return "ends its process"


if __name__ == "__main__":
    main()
