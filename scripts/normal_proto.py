"""The normal form of a serialised HloModuleProto: ids replaced by the order in which they first appear.

Knows of the message only where ids are; everything else is bytes.
"""

# Fields by number. A name is the kind of id, a dict a message inside.
SEQUENCE = {1: "instruction"}
SCHEDULE = {1: {1: "computation", 2: SEQUENCE}}
INSTRUCTION = {35: "instruction", 36: "instruction", 37: "instruction", 38: "computation"}
COMPUTATION = {2: INSTRUCTION, 5: "computation", 6: "instruction"}
MODULE = {3: COMPUTATION, 5: "module", 6: "computation", 7: SCHEDULE}


def normal(proto):
    return rewrite(proto, MODULE, {})


def rewrite(data, fields, seen):
    out = []
    for number, wire, value, raw in parts(data):
        what = fields.get(number)
        if what is None:
            out.append((number, raw))
        elif isinstance(what, dict):
            out.append((number, b"(%d " % number + rewrite(value, what, seen) + b")"))
        else:
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
