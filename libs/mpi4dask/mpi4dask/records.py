"""What travels over MPI beside large frames: envelopes, each a run of records for one engine."""

from __future__ import annotations

import struct

ENVELOPE = struct.Struct("<QQQ")  # the engine it is for, the engine it is from, bytes in all
RECORD = struct.Struct("<IIQQ")  # kind, number, two words whose meaning depends on the kind
# Transfer's id at the sender, where that counts what it copies, bytes beside the packed block, addresses that follow.
TRANSFER = struct.Struct("<QQQQ")
SPAN = struct.Struct("<QQQ")  # where it lies at the sender, where it goes at the receiver, bytes
HELP_WANTED = struct.Struct("<QQ")  # where the receiver counts what it copies, bytes of a piece

MESSAGE = 1  # number: frames in the table; words: channel, size of the packed block that follows
LARGE = 2  # as MESSAGE, then TRANSFER, where each part lies at the sender (or none), and the packed block
LARGE_APART = 3  # as LARGE, but the packed block travels as the transfer's first part
READY = 4  # number: tag; word: transfer. The receiver has posted its receives
RELEASED = 5  # word: transfer. It has been read, or nobody will receive it
CLOSED = 6  # word: channel. The last record of this channel
ASLEEP = 7  # word: envelopes received from the engine that this is sent to
HELP = 8  # number: spans; word: transfer; then HELP_WANTED and each SPAN. The receiver copies, the sender may help
HELPED = 9  # word: transfer. The sender copies no more of it, and does not look at the receiver's counts any more
GONE = 10  # the last record of an engine, which has closed

CONTROL_SIZE = RECORD.size + TRANSFER.size
