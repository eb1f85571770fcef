/* Measures MPI_Allreduce of floats. The sizes go from argv[1] to argv[2] bytes by a factor of argv[3].
 * For each size the program makes argv[4] calls to warm up, and then argv[5] calls that count. It
 * prints a line "bytes µs" with the slowest rank's time for a call. It checks the sum of each size once. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc != 6) {
        fprintf(stderr, "usage: %s BEGIN END FACTOR WARMUP ITERATIONS\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long begin = atol(argv[1]), end = atol(argv[2]), factor = atol(argv[3]);
    long warmup = atol(argv[4]), iterations = atol(argv[5]);
    int rank, nranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    float *in = malloc(end), *out = malloc(end);
    if (!in || !out || begin < 4 || factor < 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (long bytes = begin; bytes <= end; bytes *= factor) {
        long count = bytes / (long)sizeof *in;
        for (long i = 0; i < count; i++) {
            in[i] = (float)(rank + i % 7);
            out[i] = -1;
        }
        for (long i = 0; i < warmup; i++)
            MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (long i = 0; i < iterations; i++)
            MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double took = (MPI_Wtime() - start) * 1e6 / (double)iterations, slowest;
        MPI_Reduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        for (long i = 0; i < count; i++) {
            if (out[i] != (float)(nranks * (nranks - 1) / 2 + nranks * (i % 7))) {
                fprintf(stderr, "rank %d: element %ld of %ld is %f\n", rank, i, count, out[i]);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
        if (rank == 0)
            printf("%ld %f\n", bytes, slowest);
    }
    MPI_Finalize();
    return 0;
}
