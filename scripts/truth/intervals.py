"""How far XLA's own figures are from estimates, by kinds of programs; compare.py --write puts it into the files of compilers.

Of each kind (`memory::ProgramKind`), the ratios between which XLA's bytes over those of the estimate are for most programs:
more than four of five, so that four of five are within for families that the ratios were not taken from. Rules were fitted on
these programs, so an interval also has most of the first estimates of unseen.tsv, on which no rule was.
"""

import collections
import csv
import functools
import gzip
import pathlib
import re

TAILS = 0.08  # of the programs, on either side
UNSEEN_TAILS = 0.10  # four of five are within
UNSEEN_FEWEST = 13  # unseen programs of a kind that has ratios of its own
FEWEST = 15  # programs of a kind that has ratios of its own
LEAST = 30  # programs, without which nothing is known of a compiler
KINDS = ['checkpointed', 'convolutions-in-loops', 'convolutions', 'loops', 'straight']

# A program: its family, its kind, and XLA's bytes over those of the estimate.
Residual = collections.namedtuple('Residual', 'family kind ratio')


def kind(module):
    text = gzip.open(module, 'rt').read()
    if ' opt-barrier(' in text:
        return 'checkpointed'
    loops = ' while(' in text
    if ' convolution(' in text:
        return 'convolutions-in-loops' if loops else 'convolutions'
    return 'loops' if loops else 'straight'


def quantile(values, part):
    values = sorted(values)
    at = part * (len(values) - 1)
    below = values[int(at)]
    return below + (values[min(int(at) + 1, len(values) - 1)] - below) * (at - int(at))


def bounds(residuals, backend):
    """Of each kind, the lowest and highest ratio without the tails, of programs that rules were fitted on and of others."""
    fitted = of_kinds([(it.kind, it.ratio) for it in residuals], TAILS, FEWEST)
    others = of_kinds(unseen(backend), UNSEEN_TAILS, UNSEEN_FEWEST)
    return {name: (min(fitted[name][0], others[name][0]), max(fitted[name][1], others[name][1])) for name in KINDS}


@functools.cache
def unseen(backend):
    """Kinds and ratios of first estimates."""
    with open(pathlib.Path(__file__).with_name('unseen.tsv'), newline='') as file:
        rows = list(csv.DictReader(file, delimiter='\t'))
    known = [row for row in rows if row['backend'] == backend and row['total'] and row['first']]
    return [(row['kind'], int(row['total']) / int(row['first'])) for row in known]


def without_tails(ratios, tails=TAILS):
    """The lowest and highest ratio without the tails."""
    return quantile(ratios, tails), quantile(ratios, 1 - tails)


def of_kinds(ratios, tails, fewest):
    """Of each kind, the lowest and highest ratio without the tails; of all programs where there are fewer of a kind."""
    of_kind = collections.defaultdict(list)
    for name, ratio in ratios:
        of_kind[name].append(ratio)
    every = [ratio for _, ratio in ratios]
    chosen = {name: of_kind[name] if len(of_kind[name]) >= fewest else every for name in KINDS}
    return {name: without_tails(values, tails) for name, values in chosen.items()}


def is_within(it, of_kind):
    low, high = of_kind[it.kind]
    return min(low, 1) <= it.ratio <= max(high, 1)


def coverage(residuals, backend):
    """The shares within their intervals: of all programs, and where the program's own family was left out."""
    fitted = bounds(residuals, backend)
    inside = sum(is_within(it, fitted) for it in residuals)
    left_out = 0
    for name in {it.family for it in residuals}:
        others = [it for it in residuals if it.family != name]
        if others:
            of_kind = bounds(others, backend)
            left_out += sum(is_within(it, of_kind) for it in residuals if it.family == name)
    return inside / len(residuals), left_out / len(residuals)


def write(path, residuals, backend):
    """Puts the ratios into the file of a compiler for a backend."""
    lines = ['[intervals]                      # scripts/truth/intervals.py: bytes of XLA over those of the estimate']
    lines += [f'programs = {len(residuals)}']
    lines += [f'{name} = [{low:.3f}, {high:.3f}]' for name, (low, high) in bounds(residuals, backend).items()]
    rest = re.sub(r'\n\[intervals\].*?(?=\n\[|\Z)', '', path.read_text(), flags=re.S).rstrip('\n')
    path.write_text(rest + '\n\n' + '\n'.join(lines) + '\n')
