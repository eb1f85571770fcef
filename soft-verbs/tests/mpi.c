/* A ping-pong and sums over all ranks, whose every byte is checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 10, LONGEST = 1 << 16 };

static int rank, ranks;

static void fail(const char *what, size_t count)
{
    fprintf(stderr, "rank %d: %s of %zu numbers is wrong\n", rank, what, count);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void sum(size_t count)
{
    float *ours = malloc(count * sizeof *ours), *all = malloc(count * sizeof *all);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < count; i++)
            ours[i] = (rank + 1) * (float)(i % 97 + round);
        MPI_Allreduce(ours, all, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (size_t i = 0; i < count; i++)
            if (all[i] != ranks * (ranks + 1) / 2 * (float)(i % 97 + round))
                fail("a sum", count);
    }
    free(ours);
    free(all);
}

static void ping_pong(size_t count)
{
    int *message = malloc(count * sizeof *message);
    for (int round = 0; rank < 2 && round < ROUNDS; round++) {
        for (int sender = 0; sender < 2; sender++) {
            const int value = 2 * round + sender, to = 1 - sender;
            if (rank == sender) {
                memset(message, value, count * sizeof *message);
                MPI_Send(message, count, MPI_INT, to, value, MPI_COMM_WORLD);
                continue;
            }
            MPI_Recv(message, count, MPI_INT, sender, value, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (size_t i = 0; i < count; i++)
                if (message[i] != value * 0x01010101)
                    fail("a message", count);
        }
    }
    free(message);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t count = 1; count <= LONGEST; count *= 4) {
        sum(count);
        ping_pong(count);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("all right on %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
