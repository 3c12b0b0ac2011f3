"""Prints 100 MB on one line, with a rate in it, colours, NUL bytes, binary data, and very many lines."""

import os
import sys

write = sys.stdout.buffer.write
for _ in range(100):
    write(b"y" * 1_000_000)
write(b"\0\x1b[31m Img/sec: 12.5\x1b[0m\r")
write(os.urandom(1_000_000).replace(b"Img", b"img"))
for number in range(100_000):
    write(b"line %d \xff\n" % number)
sys.stdout.flush()
print("e" * 10_000_000, end="", file=sys.stderr)
