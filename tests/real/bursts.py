"""bursts.py URI COUNT: writes this many sectors at random places, 32 at once."""
import random
import sys

import nbd

h, r, under_way = nbd.NBD(), random.Random(1), []
h.connect_uri(sys.argv[1])
for _ in range(int(sys.argv[2])):
    sector = nbd.Buffer.from_bytearray(bytearray(r.randbytes(512)))
    under_way.append(h.aio_pwrite(sector, 512 * r.randrange(h.get_size() // 512)))
    while len(under_way) >= 32:
        h.poll(-1)
        under_way = [c for c in under_way if not h.aio_command_completed(c)]
while under_way:
    h.poll(-1)
    under_way = [c for c in under_way if not h.aio_command_completed(c)]
h.shutdown()
