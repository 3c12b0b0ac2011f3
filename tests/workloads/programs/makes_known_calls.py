"""Makes MPI calls that a reader can count: one of each family, in sections 1 to 4: each ``Pcontrol`` begins one."""

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
ranks, rank = world.size, world.rank
other = rank ^ 1
doubles = np.zeros(16 * ranks)
into = np.zeros(16 * ranks)

MPI.Pcontrol(1)  # point to point, in pairs
for _ in range(3):
    if rank % 2 == 0:
        world.Send(doubles[:4], other)
    else:
        world.Recv(into[:4], other)
MPI.Request.Waitall([world.Isend(bytearray(5), other), world.Irecv(bytearray(5), other)])
start = world.Send_init(doubles[:1], other)
for _ in range(7):
    start.Start()
    world.Recv(into[:1], other)
    start.Wait()
start.Free()

MPI.Pcontrol(1)  # collectives
world.Allreduce(doubles[:3], into[:3])
world.Allreduce(MPI.IN_PLACE, into[:3])
world.Allgather(doubles[:2], into[: 2 * ranks])
world.Bcast(doubles[:5], root=1)
world.Gather(doubles[:2], into[: 2 * ranks] if rank == 1 else None, root=1)
counts = [peer + 1 for peer in range(ranks)]
world.Allgatherv(doubles[: rank + 1], [into, counts])
world.Reduce_scatter(doubles[: sum(counts)], into[: rank + 1], counts)
world.Alltoall(doubles[: 4 * ranks], into[: 4 * ranks])
world.Ialltoall(doubles[: 4 * ranks], into[: 4 * ranks]).Wait()
world.Barrier()

MPI.Pcontrol(1)  # on a ring: two neighbours each
ring = world.Create_cart([ranks], periods=[True])
ring.Neighbor_allgather(doubles[:2], into[:4])
ring.Neighbor_alltoall(doubles[:4], into[:4])

MPI.Pcontrol(1)  # one-sided
window = MPI.Win.Allocate(64, comm=world)
window.Lock_all()
window.Put(doubles[:2], other)
window.Flush(other)
window.Get(into[:2], other)
window.Flush(other)
window.Unlock_all()
window.Free()
