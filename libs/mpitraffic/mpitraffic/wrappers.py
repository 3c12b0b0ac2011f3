"""The C source of the wrappers: one for each recorded function that an MPI library declares.

A library's own header has the parameters, and says which functions exist: a program that looks for a function must not
find a wrapper without the function behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PROTOTYPE = re.compile(r"\bint\s+MPI_(\w+)\s*\(([^;{}]*?)\)\s*(?:__attribute__[^;]*)?;", re.DOTALL)
_ARRAY = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True)
class Function:
    """A recorded function: names of its parameters, and C statements before and after the call.

    ``slot`` is a C expression of the communicator, ``bytes`` one of the payload.
    """

    name: str
    parameters: str
    before: str = ""
    after: str = ""
    slot: str = "recorder_slot(&call, comm)"
    bytes: str = "0"
    gathers: bool = False  # a blocking collective, in front of which the ranks can be made to wait for each other


def prototypes(header: str) -> dict[str, list[str]]:
    """Return the parameter declarations of MPI's functions in a preprocessed ``mpi.h``."""
    found: dict[str, list[str]] = {}
    for name, parameters in _PROTOTYPE.findall(header):
        declarations = [" ".join(each.split()) for each in parameters.split(",")]
        found.setdefault(name, [] if declarations == ["void"] else declarations)
    return found


def functions() -> Iterator[Function]:
    """Yield all recorded functions; those with large counts have the same parameters and ``_c`` after the name."""
    yield from _point_to_point()
    yield from _completion()
    yield from _collectives()
    yield from _one_sided()
    yield from _communicators()
    yield from _files()


def source(header: str) -> str:
    """Return the C source of the wrappers for the library with this preprocessed header."""
    declared = prototypes(header)
    wrappers: list[str] = []
    names: list[str] = []
    for function in functions():
        for suffix in ("", "_c"):
            name = function.name + suffix
            if name not in declared:
                continue
            wrappers.append(_wrapper(function, name, declared[name], len(names)))
            names.append(f'    "MPI_{name}",')
    table = "\n".join(("const char *const recorder_names[] = {", *names, "};"))
    count = f"const int recorder_names_count = {len(names)};"
    # One unit: the compiler moves the short ways through the recorder into the wrappers.
    return "\n\n".join(('#include "recorder.c"', table, count, *wrappers)) + "\n"


def _wrapper(function: Function, name: str, declarations: list[str], number: int) -> str:
    parameters = function.parameters.split()
    if len(parameters) != len(declarations):
        raise ValueError(f"MPI_{name}: expected {len(parameters)} parameters, got {len(declarations)}")
    types = [_type(each) for each in declarations]
    pointers = ", ".join(types)
    signature = ", ".join(f"{kind} {each}" for kind, each in zip(types, parameters, strict=True))
    arguments = ", ".join(parameters)
    gather = (
        "    if (recorder_waits_for_all())\n        recorder_wait_for_all(&call, comm);\n" if function.gathers else ""
    )
    # What changes an argument (a status of our own) comes before the call, and traffic after it.
    return f"""EXPORTED int MPI_{name}({signature})
{{
    static int (*real)({pointers});
    struct call call;
    int result;

    if (UNLIKELY(!real))
        real = (int (*)({pointers}))recorder_symbol("PMPI_{name}");
    if (!recorder_enter(&call))
        return real({arguments});
{_indent(function.before)}{gather}    call.begin = recorder_ticks();
    result = real({arguments});
    call.end = recorder_ticks();
    struct slot *slot = {function.slot};
    int64_t payload = {function.bytes};
    if (result == MPI_SUCCESS) {{
        (void)slot;
{_indent(function.after, 8)}    }}
    recorder_leave(&call, {number}, slot, payload);
    return result;
}}"""


def _type(declaration: str) -> str:
    """Return a parameter's type without its name; arrays become pointers."""
    stars = "*" * len(_ARRAY.findall(declaration))
    declaration = _ARRAY.sub("", declaration).strip()
    bare = re.sub(r"\b\w+$", "", declaration).strip()  # the name
    last = declaration[len(bare) :].strip()
    if not bare or bare in ("const", "unsigned") or last in ("int", "MPI_Aint", "MPI_Count"):
        bare = declaration  # a declaration without a name
    return bare + stars


def _indent(statements: str, spaces: int = 4) -> str:
    lines = [line for line in statements.strip().splitlines() if line.strip()]
    return "".join(f"{' ' * spaces}{line}\n" for line in lines)


_GATHER = """if (recorder_waits_for_all())
    recorder_wait_for_all(&call, comm);"""
_OWN_STATUS = """MPI_Status own_status;
if (status == MPI_STATUS_IGNORE)
    status = &own_status;"""
_SIZE = "recorder_size(n, type)"
_TO_PEER = "traffic_pair(&call, POINT_TO_POINT, slot, peer, payload);"


def _point_to_point() -> Iterator[Function]:
    message = "buf n type peer tag comm"
    for mode in ("S", "Bs", "Ss", "Rs"):
        yield Function(f"{mode}end".capitalize(), message, after=_TO_PEER, bytes=_SIZE)
        yield Function(f"I{mode.lower()}end", f"{message} request", after=_TO_PEER, bytes=_SIZE)
        kept = f"recorder_capture(&call);\n{_TO_PEER}\nrecorder_captured(&call, slot, HANDLE(*request), 0);"
        yield Function(f"{mode.capitalize()}end_init", f"{message} request", after=kept, bytes=_SIZE)
    kept = f"recorder_capture(&call);\n{_TO_PEER}\nrecorder_captured(&call, slot, HANDLE(*request), 0);"
    parts = "buf parts n type peer tag comm info request"
    yield Function("Psend_init", parts, after=kept, bytes="parts * recorder_size(n, type)")
    awaited = "recorder_capture(&call);\nrecorder_captured(&call, slot, HANDLE(*request), 1);"
    yield Function("Precv_init", parts, after=awaited)
    yield Function("Recv_init", f"{message} request", after=awaited)
    received = "payload = recorder_received(&call, slot, status);"
    yield Function("Recv", f"{message} status", before=_OWN_STATUS, after=received)
    # Open MPI returns the same handle for all receives from MPI_PROC_NULL.
    track = "if ({} != MPI_PROC_NULL)\n    recorder_track(slot, HANDLE(*request), 0);"
    yield Function("Irecv", f"{message} request", after=track.format("peer"))
    both = "sbuf n type peer stag rbuf rn rtype source rtag comm"
    replaced = "buf n type peer stag source rtag comm"
    for name, parameters in (("Sendrecv", both), ("Sendrecv_replace", replaced)):
        after = f"{_TO_PEER}\npayload += recorder_received(&call, slot, status);"
        yield Function(name, f"{parameters} status", before=_OWN_STATUS, after=after, bytes=_SIZE)
        yield Function(
            f"Is{name[1:]}", f"{parameters} request", after=f"{_TO_PEER}\n{track.format('source')}", bytes=_SIZE
        )
    yield Function("Probe", "peer tag comm status")
    yield Function("Iprobe", "peer tag comm flag status")
    found = "recorder_track(slot, HANDLE(*message), 1);"
    yield Function("Mprobe", "peer tag comm message status", after=f"if (*message != MPI_MESSAGE_NO_PROC)\n    {found}")
    there = f"if (*flag && *message != MPI_MESSAGE_NO_PROC)\n    {found}"
    yield Function("Improbe", "peer tag comm flag message status", after=there)
    pending = "struct pending *pending = recorder_pending(HANDLE(*message), 1);"
    of_pending = "pending ? pending->slot : NULL"
    matched = "if (pending)\n    payload = recorder_completed(&call, pending, status);"
    yield Function(
        "Mrecv", "buf n type message status", before=f"{_OWN_STATUS}\n{pending}", after=matched, slot=of_pending
    )
    matched = "if (pending) {\n    recorder_forget(pending);\n    recorder_track(slot, HANDLE(*request), 0);\n}"
    yield Function("Imrecv", "buf n type message request", before=pending, after=matched, slot=of_pending)


def _completion() -> Iterator[Function]:
    one = "struct pending *pending = recorder_tracks() ? recorder_pending(HANDLE(*request), 0) : NULL;"
    slot = "pending ? pending->slot : NULL"
    done = "if (pending)\n    payload = recorder_completed(&call, pending, status);"
    tested = done.replace("(pending)", "(pending && *flag)")
    yield Function("Wait", "request status", before=f"{_OWN_STATUS}\n{one}", after=done, slot=slot)
    yield Function("Test", "request flag status", before=f"{_OWN_STATUS}\n{one}", after=tested, slot=slot)
    freed = "if (pending)\n    recorder_forget(pending);"
    yield Function("Request_free", "request", before=one, after=freed, slot=slot)
    started = "struct slot *slot_of = NULL;"
    yield Function(
        "Start",
        "request",
        before=started,
        after="payload = recorder_started(&call, HANDLE(*request), &slot_of);\nslot = slot_of;",
        slot="NULL",
    )
    each = "for (int i = 0; i < n; i++)\n    payload += recorder_started(&call, HANDLE(requests[i]), &slot_of);"
    yield Function("Startall", "n requests", before=started, after=f"{each}\nslot = slot_of;", slot="NULL")

    many = """struct pending *few[64], **pending = NULL;
if (n > 0 && recorder_tracks()) {
    pending = n <= 64 ? few : malloc(sizeof *pending * (size_t)n);
    for (int i = 0; pending && i < n; i++)
        pending[i] = recorder_pending(HANDLE(requests[i]), 0);
}"""
    own_statuses = """MPI_Status few_statuses[64], *own_statuses = NULL;
if (pending && statuses == MPI_STATUSES_IGNORE) {
    own_statuses = n <= 64 ? few_statuses : malloc(sizeof *own_statuses * (size_t)n);
    if (own_statuses)
        statuses = own_statuses;
}"""
    free = """if (own_statuses != few_statuses)
    free(own_statuses);"""
    released = "if (pending != few)\n    free(pending);"
    # On an error the requests stay with the table until they are completed or freed.
    every = """if (pending && statuses != MPI_STATUSES_IGNORE{flag})
    for (int i = 0; i < n; i++)
        if (pending[i])
            payload += recorder_completed(&call, pending[i], &statuses[i]);"""
    some = """if (pending && statuses != MPI_STATUSES_IGNORE && *done != MPI_UNDEFINED)
    for (int i = 0; i < *done; i++)
        if (pending[indices[i]])
            payload += recorder_completed(&call, pending[indices[i]], &statuses[i]);"""
    any_ = """if (pending && *index != MPI_UNDEFINED{flag} && pending[*index])
    payload = recorder_completed(&call, pending[*index], status);"""
    for name, parameters, flag in (
        ("Waitall", "n requests statuses", ""),
        ("Testall", "n requests flag statuses", "f"),
    ):
        after = every.replace("{flag}", " && *flag" if flag else "")
        yield Function(name, parameters, f"{many}\n{own_statuses}", f"{after}\n{free}\n{released}", slot="NULL")
    for name in ("Waitsome", "Testsome"):
        parameters = "n requests done indices statuses"
        yield Function(name, parameters, f"{many}\n{own_statuses}", f"{some}\n{free}\n{released}", slot="NULL")
    for name, parameters, flag in (
        ("Waitany", "n requests index status", ""),
        ("Testany", "n requests index flag status", "f"),
    ):
        after = any_.replace("{flag}", " && *flag" if flag else "")
        yield Function(name, parameters, f"{_OWN_STATUS}\n{many}", f"{after}\n{released}", slot="NULL")


def _collective(name: str, parameters: str, size: str, traffic: str, before: str = "") -> Iterator[Function]:
    """Yield the blocking, nonblocking and persistent forms."""
    yield Function(name, parameters, before=before, after=traffic, bytes=size, gathers=True)
    yield Function(f"I{name[0].lower()}{name[1:]}", f"{parameters} request", before=before, after=traffic, bytes=size)
    kept = f"recorder_capture(&call);\n{traffic}\nrecorder_captured(&call, slot, HANDLE(*request), 0);"
    yield Function(f"{name}_init", f"{parameters} info request", before=before, after=kept, bytes=size)


def _collectives() -> Iterator[Function]:
    yield from _collective("Barrier", "comm", "0", "")
    yield from _collective("Bcast", "buf n type root comm", _SIZE, "traffic_from_root(&call, slot, root, payload);")
    one_to_one = "sbuf n type rbuf rn rtype"
    to_root = "traffic_to_root(&call, slot, root, payload);"
    at_root = "sbuf == MPI_IN_PLACE || (slot && slot->inter && root < 0) ? 0 : "
    yield from _collective("Gather", f"{one_to_one} root comm", f"{at_root}{_SIZE}", to_root)
    yield from _collective("Gatherv", "sbuf n type rbuf rns displs rtype root comm", f"{at_root}{_SIZE}", to_root)
    yield from _collective(
        "Scatter",
        f"{one_to_one} root comm",
        "recorder_is_root(slot, root) ? slot->size * recorder_size(n, type) : 0",
        "if (recorder_is_root(slot, root))\n    traffic_each(&call, slot, recorder_size(n, type));",
    )
    # Blocks of different sizes: a loop over the ranks, as the operation itself has.
    blocks = """for (int i = 0; slot && i < slot->size; i++) {
    int64_t block = BLOCK;
    payload += block;
    if (slot->inter || i != slot->me)
        traffic_pair(&call, COLLECTIVE, slot, i, block);
}"""
    scattered = f"if (recorder_is_root(slot, root))\n{_indent(blocks.replace('BLOCK', 'recorder_size(ns[i], type)'))}"
    yield from _collective("Scatterv", "sbuf ns displs type rbuf rn rtype root comm", "0", scattered)
    each = "traffic_each(&call, slot, payload);"
    in_place = "sbuf == MPI_IN_PLACE ? recorder_size({}, rtype) : recorder_size(n, type)"
    yield from _collective("Allgather", f"{one_to_one} comm", in_place.format("rn"), each)
    yield from _collective(
        "Allgatherv",
        "sbuf n type rbuf rns displs rtype comm",
        in_place.format("slot ? rns[slot->me] : 0"),
        each,
    )
    yield from _collective(
        "Alltoall",
        f"{one_to_one} comm",
        f"({in_place.format('rn')}) * (slot ? slot->size : 0)",
        f"traffic_each(&call, slot, {in_place.format('rn')});",
    )
    v = "sbuf == MPI_IN_PLACE ? recorder_size(rns[i], rtype) : recorder_size(ns[i], type)"
    w = "sbuf == MPI_IN_PLACE ? recorder_size(rns[i], rtypes[i]) : recorder_size(ns[i], types[i])"
    for name, parameters, block in (
        ("Alltoallv", "sbuf ns sdispls type rbuf rns rdispls rtype comm", v),
        ("Alltoallw", "sbuf ns sdispls types rbuf rns rdispls rtypes comm", w),
    ):
        yield from _collective(name, parameters, "0", blocks.replace("BLOCK", block))
    reduced = "sbuf rbuf n type op"
    yield from _collective("Reduce", f"{reduced} root comm", _SIZE, to_root)
    # The reader derives the traffic of these two from the record of the call, which saves a record on a frequent way.
    yield Function("Allreduce", f"{reduced} comm", bytes=_SIZE, gathers=True)
    yield Function("Iallreduce", f"{reduced} comm request", bytes=_SIZE)
    kept = "recorder_capture(&call);\ntraffic_shared(&call, slot, payload);\n"
    kept += "recorder_captured(&call, slot, HANDLE(*request), 0);"
    yield Function("Allreduce_init", f"{reduced} comm info request", after=kept, bytes=_SIZE)
    yield from _collective(
        "Reduce_scatter", "sbuf rbuf ns type op comm", "0", blocks.replace("BLOCK", "recorder_size(ns[i], type)")
    )
    yield from _collective(
        "Reduce_scatter_block",
        f"{reduced} comm",
        "recorder_size(n, type) * (slot ? slot->size : 0)",
        "traffic_each(&call, slot, recorder_size(n, type));",
    )
    for name in ("Scan", "Exscan"):
        yield from _collective(name, f"{reduced} comm", _SIZE, "traffic_next(&call, slot, payload);")
    neighbours = """int neighbours = recorder_neighbours(slot, comm);
for (int i = 0; i < neighbours; i++) {
    int64_t block = BLOCK;
    payload += block;
    traffic_pair(&call, COLLECTIVE, slot, slot->out[i], block);
}"""
    for name, parameters, block in (
        ("allgather", f"{one_to_one} comm", "recorder_size(n, type)"),
        ("allgatherv", "sbuf n type rbuf rns displs rtype comm", "recorder_size(n, type)"),
        ("alltoall", f"{one_to_one} comm", "recorder_size(n, type)"),
        ("alltoallv", "sbuf ns sdispls type rbuf rns rdispls rtype comm", "recorder_size(ns[i], type)"),
        ("alltoallw", "sbuf ns sdispls types rbuf rns rdispls rtypes comm", "recorder_size(ns[i], types[i])"),
    ):
        yield from _collective(f"Neighbor_{name}", parameters, "0", neighbours.replace("BLOCK", block))


def _one_sided() -> Iterator[Function]:
    slot = "recorder_window(win)"
    send = "traffic_pair(&call, ONE_SIDED, slot, target, recorder_size(n, type));"
    fetch = "traffic_pair(&call, ONE_SIDED | FETCHED, slot, target, {});"
    origin, at_target = "buf n type", "target displacement tn ttype"
    for name, parameters, after, size in (
        ("put", f"{origin} {at_target} win", send, _SIZE),
        ("get", f"{origin} {at_target} win", fetch.format("payload"), _SIZE),
        ("accumulate", f"{origin} {at_target} op win", send, _SIZE),
        (
            "get_accumulate",
            f"{origin} fetched rn rtype {at_target} op win",
            f"if (op != MPI_NO_OP)\n    {send}\n{fetch.format('recorder_size(rn, rtype)')}",
            "op == MPI_NO_OP ? recorder_size(rn, rtype) : recorder_size(n, type)",
        ),
    ):
        yield Function(name.capitalize(), parameters, after=after, slot=slot, bytes=size)
        yield Function(f"R{name}", f"{parameters} request", after=after, slot=slot, bytes=size)
    single = "recorder_size(1, type)"
    sent = f"traffic_pair(&call, ONE_SIDED, slot, target, {single});"
    yield Function(
        "Fetch_and_op",
        "buf fetched type target displacement op win",
        after=f"if (op != MPI_NO_OP)\n    {sent}\n{fetch.format(single)}",
        slot=slot,
        bytes=single,
    )
    yield Function(
        "Compare_and_swap",
        "buf compared fetched type target displacement win",
        after=f"traffic_pair(&call, ONE_SIDED, slot, target, 2 * {single});\n{fetch.format(single)}",
        slot=slot,
        bytes=single,
    )
    for name, parameters in (
        ("Win_fence", "assertion win"),
        ("Win_start", "group assertion win"),
        ("Win_complete", "win"),
        ("Win_post", "group assertion win"),
        ("Win_wait", "win"),
        ("Win_lock", "kind target assertion win"),
        ("Win_unlock", "target win"),
        ("Win_lock_all", "assertion win"),
        ("Win_unlock_all", "win"),
        ("Win_flush", "target win"),
        ("Win_flush_all", "win"),
        ("Win_flush_local", "target win"),
        ("Win_flush_local_all", "win"),
    ):
        yield Function(name, parameters, slot=slot)


def _communicators() -> Iterator[Function]:
    for name, parameters in (
        ("Comm_dup", "comm created"),
        ("Comm_dup_with_info", "comm info created"),
        ("Comm_create", "comm group created"),
        ("Comm_create_group", "comm group tag created"),
        ("Comm_split", "comm color key created"),
        ("Comm_split_type", "comm kind key info created"),
        ("Cart_create", "comm dimensions extents periods reorder created"),
        ("Cart_sub", "comm remaining created"),
        ("Graph_create", "comm nodes index edges reorder created"),
        ("Dist_graph_create", "comm n sources degrees destinations weights info reorder created"),
        (
            "Dist_graph_create_adjacent",
            "comm indegree sources sweights outdegree destinations dweights info reorder created",
        ),
        ("Intercomm_create", "comm leader peer_comm remote_leader tag created"),
        ("Intercomm_merge", "comm high created"),
    ):
        yield Function(name, parameters, after="recorder_created(&call, *created);")


def _files() -> Iterator[Function]:
    for direction in ("read", "write"):
        for name, parameters in (
            ("", "file buf n type status"),
            ("_all", "file buf n type status"),
            ("_at", "file offset buf n type status"),
            ("_at_all", "file offset buf n type status"),
            ("_shared", "file buf n type status"),
            ("_ordered", "file buf n type status"),
        ):
            yield Function(f"File_{direction}{name}", parameters, slot="NULL", bytes=_SIZE)
            if name in ("_shared", "_ordered"):
                continue
            asynchronous = f"File_i{direction}{name}"
            yield Function(asynchronous, parameters.replace("status", "request"), slot="NULL", bytes=_SIZE)
