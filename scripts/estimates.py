#!/usr/bin/env python3
"""Writes docs/estimate.md: compares `memplan estimate` on programs before XLA compiles them with what XLA needed.

usage: scripts/estimates.py [--memplan FILE]                   the table, from scripts/estimates.tsv
       scripts/estimates.py --truth PYTHON [gpu|cpu|tpu]...    asks XLA again (minutes) and writes scripts/estimates.tsv

From the project's root; needs the corpus ($MEMPLAN_SHARED or ../shared), whose PEERS.tsv has XLA's figures of its programs.
The others are written in scripts/estimate_programs.py and were looked at only after the rules had been set. PYTHON has JAX
and XLA's compilers.
"""
import csv, glob, json, math, os, resource, subprocess, sys, tempfile

SHARED = os.environ.get('MEMPLAN_SHARED', '../shared')
TRUTH = 'scripts/estimates.tsv'
GOALS = {'gpu': (.10, .25), 'cpu': (.10, .25), 'tpu': (.15, .35)}
PAGE = 'docs/estimate.md'
LIBRARIES = '## Programs of libraries\n'  # begins the section that scripts/truth/unseen.py writes
LEAST = 1_000_000  # bytes: of smaller programs, alignment and code are most of what there is
# The versions that measured these programs.
COMPILERS = dict(gpu='xla-gpu@0.10', cpu='xla-cpu@0.10', tpu='xla-tpu')


def programs(folder, python):
    """The programs of estimate_programs.py, lowered."""
    subprocess.run([python, 'scripts/estimate_programs.py', folder], check=True)
    return {os.path.basename(f).split('.')[0]: f for f in sorted(glob.glob(f'{folder}/*.hlo.txt'))}


def ask_xla(python, backends):
    """One row for each program and backend."""
    known = [row for row in rows(TRUTH) if row['backend'] not in backends] if os.path.exists(TRUTH) else []
    with tempfile.TemporaryDirectory() as folder:
        files = programs(folder, python)
        for backend in backends:
            asked = subprocess.run([python, f'{SHARED}/tools/xla_compile.py', backend, *files.values()],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in asked.stdout.splitlines():
                row = json.loads(line)
                if 'total' in row:
                    name = os.path.basename(row['file']).split('.')[0]
                    known.append({'program': name, 'backend': backend, 'total': row['total']})
    with open(TRUTH, 'w') as out:
        writer = csv.DictWriter(out, ['program', 'backend', 'total'], delimiter='\t', lineterminator='\n')
        writer.writeheader()
        writer.writerows(sorted(known, key=lambda row: (row['program'], row['backend'])))


def rows(path):
    return list(csv.DictReader(open(path), delimiter='\t'))


def processor_time():
    """Seconds that programs run from here took on a core: other jobs do not show."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Refused(Exception):
    """memplan did not estimate a module."""


def estimate(memplan, module, compiler):
    start = processor_time()
    run = subprocess.run([memplan, 'estimate', module, '--compiler', compiler, '--format', 'json'],
                         capture_output=True, text=True)
    if run.returncode not in (0, 3):  # 3: it does not fit
        raise Refused(f'{module}: {run.stderr.strip()}')
    return json.loads(run.stdout)['total'], processor_time() - start


def table(memplan, files, truth):
    """Lines of the table, and for each backend the ratios of its programs and the longest time."""
    lines, ratios, slowest = [], {backend: {} for backend in GOALS}, dict.fromkeys(GOALS, 0)
    for program, file in files.items():
        cells = []
        for backend in GOALS:
            total = truth.get((program, backend), 0)
            if total < LEAST:
                cells += ['', '', '']
                continue
            found, seconds = estimate(memplan, file, COMPILERS[backend])
            ratios[backend][program] = found / total
            slowest[backend] = max(slowest[backend], seconds)
            cells += [f'{total / 1e6:,.1f}', f'{found / 1e6:,.1f}', f'{found / total:.3f}']
        if any(cells):
            lines.append(f'| {program} | ' + ' | '.join(cells) + ' |')
    return lines, ratios, slowest


def summary(ratios, slowest):
    for backend, (near, far) in GOALS.items():
        found = ratios[backend]
        if not found:
            continue
        within = sum(abs(ratio - 1) <= near for ratio in found.values())
        worst = max(found, key=lambda program: abs(math.log(found[program])))
        yield (f'- xla-{backend}: {within} of {len(found)} within {near:.0%}; farthest {worst} at {found[worst]:.2f}; '
               f'at most {max(.1, slowest[backend]):.1f} s of a core')


def page(memplan, python):
    corpus = {os.path.basename(folder): f'{folder}/before.hlo.txt' for folder in sorted(glob.glob(f'{SHARED}/corpus/*'))
              if os.path.isdir(folder)}
    peers = {(r['program'], r['backend']): int(r['total']) for r in rows(f'{SHARED}/corpus/PEERS.tsv')}
    own = {(r['program'], r['backend']): int(r['total']) for r in rows(TRUTH)}
    head = ('| program | ' + ' | '.join(f'{b}: XLA | estimate | ratio' for b in GOALS) + ' |\n|---|' + '---:|' * 9)
    yield '# Estimates before XLA compiles\n'
    yield ('`scripts/estimates.py` made this. It compares `memplan estimate` on the modules that JAX hands over with what XLA '
           'needed (arguments + outputs - aliased + temporaries; GPU: an H100, TPU: a v5e). Totals are in MB (10^6 bytes); '
           'programs of less than 1 MB are left out.\n')
    yield '`memplan estimate --beside XLA_MODULE` explains why an estimate differs: [beside.md](beside.md).\n'
    with tempfile.TemporaryDirectory() as folder:
        for title, files, truth in [('The corpus', lambda: corpus, peers),
                                    ('Other programs', lambda: programs(folder, python), own)]:
            lines, ratios, slowest = table(memplan, files(), truth)
            yield f'## {title}\n'
            yield '\n'.join(summary(ratios, slowest)) + '\n'
            yield '\n'.join([head, *lines]) + '\n'


def main():
    arguments = sys.argv[1:]
    options = {key: arguments[arguments.index(key) + 1] for key in ('--memplan', '--truth') if key in arguments}
    python = options.get('--truth', sys.executable)
    if '--truth' in options:
        ask_xla(python, [backend for backend in GOALS if backend in arguments] or list(GOALS))
    lines = list(page(options.get('--memplan', 'target/release/memplan'), python))
    _, begins, section = open(PAGE).read().partition(LIBRARIES)
    open(PAGE, 'w').write('\n'.join(lines) + '\n' + begins + section)


if __name__ == '__main__':
    main()
