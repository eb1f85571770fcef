// A rank that sums, gathers, broadcasts and waits over gloo's transport `ibverbs`, and checks every number. gloo's
// ReduceScatterHalvingDoubling is left out: it overwrites memory that a slow device has still to send.
//
// The arguments are the device, a folder in which the ranks meet, the rank, and the number of ranks. The rank ends when
// its standard input does.
#include <gloo/allgather_ring.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kRounds = 10;
constexpr int kLongest = 1 << 16;

using Numbers = std::vector<float>;
using Context = std::shared_ptr<gloo::Context>;

/// What a rank puts in at a place in a round.
float input(int rank, int at, int round) {
  return static_cast<float>((rank + 1) * (at % 97 + round));
}

/// What all ranks put in there together.
float sum(int ranks, int at, int round) {
  return static_cast<float>(ranks * (ranks + 1) / 2 * (at % 97 + round));
}

void fill(Numbers& numbers, int rank, int round) {
  for (int at = 0; at < static_cast<int>(numbers.size()); at++) {
    numbers[at] = input(rank, at, round);
  }
}

/// The algorithms of a rank and their memory. gloo aborts the process if an algorithm ends before the completion of
/// its last send, for which it does not wait. So they stay.
std::deque<Numbers> memory;
std::vector<std::unique_ptr<gloo::Algorithm>> algorithms;

Numbers& numbers_of(int count) { return memory.emplace_back(count); }

template <typename Algorithm, typename... Arguments>
Algorithm& start(Arguments... arguments) {
  algorithms.push_back(std::make_unique<Algorithm>(arguments...));
  return static_cast<Algorithm&>(*algorithms.back());
}

/// Runs an algorithm several times with other numbers. `want` says what a place should have then. The next run of
/// another rank may already write to `out`, so all ranks wait for each other.
template <typename Want>
void run(const char* what, gloo::Algorithm& algorithm, const Context& context, Numbers& in, const Numbers& out,
         int count, Want want) {
  auto& barrier = start<gloo::BarrierAllToAll>(context);
  for (int round = 0; round < kRounds; round++) {
    fill(in, context->rank, round);
    algorithm.run();
    for (int at = 0; at < count; at++) {
      if (out[at] != want(at, round)) {
        throw std::runtime_error(std::string(what) + " of " + std::to_string(count) + " numbers is wrong at " +
                                 std::to_string(at));
      }
    }
    barrier.run();
  }
}

template <typename Algorithm>
void all_reduce(const char* what, const Context& context, int count) {
  Numbers& numbers = numbers_of(count);
  const std::vector<float*> pointers = {numbers.data()};
  auto& algorithm = start<Algorithm>(context, pointers, count);
  run(what, algorithm, context, numbers, numbers, count,
      [&](int at, int round) { return sum(context->size, at, round); });
}

void all_gather(const Context& context, int count) {
  Numbers &ours = numbers_of(count), &all = numbers_of(count * context->size);
  const std::vector<const float*> pointers = {ours.data()};
  auto& algorithm = start<gloo::AllgatherRing<float>>(context, pointers, all.data(), count);
  run("a gathered list", algorithm, context, ours, all, static_cast<int>(all.size()),
      [&](int at, int round) { return input(at / count, at % count, round); });
}

void broadcast(const Context& context, int count, int root) {
  Numbers& numbers = numbers_of(count);
  const std::vector<float*> pointers = {numbers.data()};
  auto& algorithm = start<gloo::BroadcastOneToAll<float>>(context, pointers, count, root);
  run("a broadcast", algorithm, context, numbers, numbers, count,
      [&](int at, int round) { return input(root, at, round); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: gloo DEVICE FOLDER RANK RANKS\n");
    return 2;
  }
  try {
    const gloo::transport::ibverbs::attr attr = {argv[1], 1, 0};
    auto device = gloo::transport::ibverbs::CreateDevice(attr);
    gloo::rendezvous::FileStore store(argv[2]);
    auto context = std::make_shared<gloo::rendezvous::Context>(std::stoi(argv[3]), std::stoi(argv[4]));
    context->connectFullMesh(store, device);
    for (int count = 1; count <= kLongest; count *= 16) {
      all_reduce<gloo::AllreduceRing<float>>("a sum by a ring", context, count);
      all_reduce<gloo::AllreduceRingChunked<float>>("a sum by a ring of chunks", context, count);
      all_reduce<gloo::AllreduceHalvingDoubling<float>>("a sum by halves", context, count);
      all_reduce<gloo::AllreduceBcube<float>>("a sum by a cube", context, count);
      all_gather(context, count);
      broadcast(context, count, count % context->size);
    }
    start<gloo::BarrierAllToAll>(context).run();
    std::printf("all right on %d ranks\n", context->size);
    std::fflush(stdout);
    // A rank that ends breaks the sends of others, so it waits until all are done.
    while (std::getchar() != EOF) {
    }
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %s: %s\n", argv[3], error.what());
    return 1;
  }
}
