"""The normal form of a serialised HloModuleProto: ids replaced by the order in which they first appear.

Knows of the message only where ids are; everything else is bytes.
"""

# Fields by number. A name is the kind of id, a dict a message inside. The id of the module itself means nothing.
SEQUENCE = {1: "instruction"}
SCHEDULE = {1: {1: "computation", 2: SEQUENCE}}
INSTRUCTION = {35: "instruction", 36: "instruction", 37: "instruction", 38: "computation"}
COMPUTATION = {2: INSTRUCTION, 5: "computation", 6: "instruction"}
MODULE = {3: COMPUTATION, 5: None, 6: "computation", 7: SCHEDULE}
# The modules of a recovery table have ids of their own.
MODULE[20] = {1: {3: MODULE}}

LITERAL = 8

# Single ids: absent where they are 0.
SINGLE = [(INSTRUCTION, 35), (COMPUTATION, 5), (COMPUTATION, 6), (MODULE, 6), (SCHEDULE[1], 1)]


def normal(proto, with_literals=True):
    """The normal form, of constants with their elements or without."""
    return rewrite(proto, MODULE, {}, () if with_literals else (LITERAL,))


def rewrite(data, fields, seen, left_out):
    out = []
    given = [part for part in parts(data) if fields is not INSTRUCTION or part[0] not in left_out]
    if fields is MODULE:
        seen = {}
    present = {number for number, *_ in given}
    given += [(number, 0, 0, b"") for of, number in SINGLE if of is fields and number not in present]
    for number, wire, value, raw in sorted(given, key=lambda part: part[0]):
        what = fields.get(number, bytes)
        if what is bytes:
            out.append((number, raw))
        elif isinstance(what, dict):
            out.append((number, b"(%d " % number + rewrite(value, what, seen, left_out) + b")"))
        elif what is not None:
            ids = [value] if wire == 0 else list(varints(value))
            numbers = [seen.setdefault((what, i), len(seen)) for i in ids]
            out.append((number, f"[{number} {what} {numbers}]".encode()))
    if fields is SCHEDULE:
        # A map: its order means nothing.
        out.sort(key=lambda part: part[1])
    return b"".join(raw for _, raw in out)


def parts(data):
    """(field, wire type, value, raw bytes) of each field."""
    at = 0
    while at < len(data):
        begin = at
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            width = 8 if wire == 1 else 4
            value, at = data[at : at + width], at + width
        yield key >> 3, wire, value, data[begin:at]


def varints(data):
    at = 0
    while at < len(data):
        value, at = varint(data, at)
        yield value


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
