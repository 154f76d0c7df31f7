"""What a program is, and the families that the files beside this one add theirs to."""

import collections
import itertools

# A jitted function with the shapes of its arguments, under the name `family/variant`.
Program = collections.namedtuple('Program', 'name function arguments')

FAMILIES = {}  # name: (file, function that makes the variants)


def family(make):
    """Adds a family: a generator of (variant, jitted function, arguments). Its name is that of the generator.

    The name is the family's identity: whoever leaves families out by turns goes by it, so it does not change. The first
    variants differ most, since they are measured first, and only they by libtpu.
    """
    assert make.__name__ not in FAMILIES, make.__name__
    FAMILIES[make.__name__] = make.__module__, make
    return make


def programs():
    """All programs, by turns: the first variant of every family, then the second of every family, and so on."""
    variants = [[Program(f'{name}/{variant}', *rest) for variant, *rest in make()] for name, (_, make) in FAMILIES.items()]
    turns = [[program for program in turn if program] for turn in itertools.zip_longest(*variants)]
    names = [program.name for turn in turns for program in turn]
    assert len(set(names)) == len(names), 'two variants of one family have the same name'
    return turns
