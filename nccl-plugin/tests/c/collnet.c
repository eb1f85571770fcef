// Drives collNet as NCCL does: several processes open the plugin by name, meet, and reduce.
//
//   collnet LIBRARY RANKS brief|full   checks every operation against a naive one; full takes 64 MiB for each too
//   collnet LIBRARY RANKS big          checks each operation beyond 2^31 bytes
//   collnet LIBRARY RANKS kill RANK    that rank is killed, and the others hear of it
//   collnet LIBRARY RANKS close RANK   that rank closes its comm during a collective
//   collnet LIBRARY RANKS free RANK    that rank comes late to a collective, whose memory the others free
//   collnet LIBRARY RANKS stop RANK    that rank is stopped until the others have named it, and goes on
//   collnet LIBRARY RANKS until PATH   reduces until this file is there
//   collnet LIBRARY 1 off              collNet is off
//
// It prints "ok" and exits with 0, or prints the fault and exits with 1. If COLLNET_NETNS=a,b is set, the ranks
// are in the network namespaces a and b in turn.
#define _GNU_SOURCE
#include "collnet.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

// A slow machine may give more time.
#ifndef SECONDS_MAX
#define SECONDS_MAX 300
#endif

enum { MIB = 1 << 20, RANKS_MAX = 8, COMMS = 2, WINDOW = 8 };
enum { SUM, PROD, MAX, MIN, AVG, OPS };
enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, TYPES };

static int rank = -1, nranks;
static collnet_t* net;
#if API >= 11
static void* context;
#endif
static int logged_on;
static char last_warning[1024];

// What the processes share.
static struct shared {
  _Atomic int arrived, round, stopped, warned;
  char handles[COMMS][RANKS_MAX][HANDLE_BYTES];
}* shared;

#define FAIL(...) \
  (fprintf(stderr, "v" TEXT(API) " rank %d of %d: ", rank, nranks), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(condition) \
  do { \
    if (!(condition)) FAIL("line %d: %s (last warning: %s)", __LINE__, #condition, last_warning); \
  } while (0)
#define OK(call) CHECK((call) == SUCCESS)

static void logger(int level, unsigned long subsystems, const char* file, int line, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  CHECK(subsystems != 0 && file != NULL && line >= 0);
  if (level == LOG_WARN) memcpy(last_warning, text, sizeof text);
  if (level == LOG_INFO && strncmp(text, "NET/Invar : collNet is on", 25) == 0) logged_on = 1;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static double start_of_run;

static void alarm_clock(void) {
  if (now() - start_of_run > SECONDS_MAX) FAIL("this takes too long (last warning: %s)", last_warning);
}

static void all_arrive(void) {
  int round = shared->round;
  if (++shared->arrived == nranks) {
    shared->arrived = 0;
    shared->round++;
    return;
  }
  for (; shared->round == round; sched_yield()) alarm_clock();
}

// ---------------------------------------------------------------- elements

static const size_t BYTES[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static const double TOLERANCE[TYPES] = {[F16] = 1e-2, [F32] = 1e-5, [F64] = 1e-12, [BF16] = 6e-2};

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Stores a small whole number, which every type has.
static void put(unsigned char* to, int type, int number) {
  int64_t whole = number;
  float single = number;
  double twice = number;
  uint16_t half = 0;
  if (type == BF16) half = (uint16_t)(bits_of(single) >> 16);
  if (type == F16 && number != 0) half = (uint16_t)(((bits_of(single) >> 13) & 0x3ffff) - (112 << 10));
  const void* from = type == F32 ? (void*)&single : type == F64 ? (void*)&twice : type == F16 || type == BF16 ? (void*)&half : (void*)&whole;
  memcpy(to, from, BYTES[type]); // whole numbers begin with their lowest byte
}

static double get(const unsigned char* from, int type) {
  union { int8_t i8; uint8_t u8; int32_t i32; uint32_t u32; int64_t i64; uint64_t u64; uint16_t half; float f32; double f64; } value;
  memcpy(&value, from, BYTES[type]);
  switch (type) {
    case I8: return value.i8;
    case U8: return value.u8;
    case I32: return value.i32;
    case U32: return value.u32;
    case I64: return (double)value.i64;
    case U64: return (double)value.u64;
    case F16: return value.half ? of_bits(((uint32_t)value.half << 13) + (112u << 23)) : 0;
    case F32: return value.f32;
    case F64: return value.f64;
    default: return of_bits((uint32_t)value.half << 16);
  }
}

// Element i of a rank's input. One rank has a 2 where the ranks multiply.
static int input(int op, size_t i, int of) {
  return op == PROD ? 1 + (i % (size_t)nranks == (size_t)of) : (int)((i * 7 + (size_t)of * 3) % 8);
}

static double reduce(int op, size_t i) {
  double value = input(op, i, 0);
  for (int of = 1; of < nranks; of++) {
    double next = input(op, i, of);
    value = op == PROD ? value * next : op == MAX ? (next > value ? next : value) : op == MIN ? (next < value ? next : value) : value + next;
  }
  return op == AVG ? value / nranks : value;
}

// The results repeat themselves, as the inputs do.
static double results[OPS][8];

static size_t period(int op) {
  return op == PROD ? (size_t)nranks : 8;
}

static double reduced(int op, size_t i) {
  return results[op][i % period(op)];
}

// Stores elements of a rank's input, from `first` on. The first period is copied over and over.
static void fill(unsigned char* to, int type, int op, size_t first, size_t n) {
  size_t size = BYTES[type], done = n < period(op) ? n : period(op);
  for (size_t i = 0; i < done; i++) put(to + i * size, type, input(op, first + i, rank));
  for (size_t more; done < n; done += more) {
    more = n - done < done ? n - done : done;
    memcpy(to + done * size, to, more * size);
  }
}

static void reduce_all(void) {
  for (int op = 0; op < OPS; op++)
    for (size_t i = 0; i < 8; i++) results[op][i] = reduce(op, i);
}

static void check_element(const unsigned char* at, int type, int op, size_t i) {
  double got = get(at, type), want = reduced(op, i);
  double off = got > want ? got - want : want - got;
  int right = TOLERANCE[type] > 0 ? off <= TOLERANCE[type] * want : got == (double)(int64_t)want;
  if (!right) FAIL("type %d, op %d: element %zu is %g, not %g", type, op, i, got, want);
}

// Checks reduced elements, from `first` on. If they repeat, the first period stands for all.
static void check_elements(const unsigned char* at, int type, int op, size_t first, size_t n) {
  size_t size = BYTES[type], behind = period(op);
  if (n > behind && memcmp(at, at + behind * size, (n - behind) * size) == 0) n = behind;
  for (size_t i = 0; i < n; i++) check_element(at + i * size, type, op, first + i);
}

// ---------------------------------------------------------------- what differs by version

static int init(void) {
#if API >= 11
  return net->init(&context, 7, logger);
#else
  return net->init(logger);
#endif
}

static int start_listening(void* handle, void** comm) {
#if API >= 11
  return net->listen(context, 0, handle, comm);
#else
  return net->listen(0, handle, comm);
#endif
}

static int finalize(void) {
#if API >= 11
  return net->finalize(context);
#else
  return SUCCESS;
#endif
}

// ---------------------------------------------------------------- comms and jobs

static void* comms[COMMS];
// Each comm has the memory registered.
static unsigned char* memory;
static size_t memory_bytes;
static void* mhandles[COMMS];

static void meet(size_t bytes) {
  OK(init());
  CHECK(logged_on);
  void* listening[COMMS];
  for (int c = 0; c < COMMS; c++) OK(start_listening(shared->handles[c][rank], &listening[c]));
  all_arrive();
  memory_bytes = bytes;
  memory = malloc(bytes);
  CHECK(memory != NULL);
  for (int c = 0; c < COMMS; c++) {
    void* handles[RANKS_MAX];
    for (int of = 0; of < nranks; of++) handles[of] = shared->handles[c][of];
    OK(net->connect(handles, nranks, rank, listening[c], &comms[c]));
    CHECK(comms[c] != NULL);
    OK(net->closeListen(listening[c]));
    OK(net->regMr(comms[c], memory, (reg_bytes_t)bytes, PTR_HOST, &mhandles[c]));
  }
}

static void part(void) {
  for (int c = 0; c < COMMS; c++) {
    if (mhandles[c]) OK(net->deregMr(comms[c], mhandles[c]));
    OK(net->closeColl(comms[c]));
    CHECK(net->closeColl(comms[c]) != SUCCESS);
  }
  free(memory);
  OK(finalize());
}

enum { ALLREDUCE, ALLGATHER, REDUCESCATTER };

// A collective: its operation, and where its memory is.
typedef struct {
  int what, comm, type, op, in_place, parts;
  size_t count;                 // elements of an all-reduce, or of a block
  size_t offset, window;        // elements of the window
  unsigned char *from, *to;     // for blocks: this rank's piece, and the window, or the other way round
  void* request;
  size_t bytes;                 // that test says
} job_t;

static size_t piece_start(const job_t* job, int of) {
  size_t at = job->count * (size_t)of;
  return at < job->offset ? 0 : at > job->offset + job->window ? job->window : at - job->offset;
}

// Starts a job with memory at `at`, and returns the memory behind.
static unsigned char* begin(job_t* job, unsigned char* at) {
  size_t size = BYTES[job->type];
  void* mhandle = mhandles[job->comm];
  void* comm = comms[job->comm];
  size_t first = piece_start(job, rank), own = piece_start(job, rank + 1) - first;
  size_t long_ = job->what == ALLREDUCE ? job->count : job->window, short_ = job->what == ALLREDUCE ? job->count : own;
  unsigned char *all = at, *piece = at + long_ * size + 64;
  size_t room = (long_ + (job->in_place ? 0 : short_)) * size + 128;
  unsigned char* behind = at + room;
  CHECK(behind <= memory + memory_bytes);
  if (job->in_place) piece = all + (job->what == ALLREDUCE ? 0 : first * size);
  memset(at, 0x5a, room);
  int gathers = job->what == ALLGATHER;
  job->from = job->what == REDUCESCATTER ? all : piece;
  job->to = job->what == REDUCESCATTER ? piece : all;
  size_t begins = job->what == ALLREDUCE ? 0 : job->offset + (gathers ? first : 0);
  fill(job->from, job->type, job->op, begins, gathers || job->what == ALLREDUCE ? short_ : long_);
  job->request = NULL;
  for (int done = 0; !done; alarm_clock()) {
    if (job->what == ALLREDUCE) {
      job->bytes = job->count * size;
      OK(net->iallreduce(comm, job->from, job->to, (count_t)job->count, job->type, job->op, mhandle, mhandle, &job->request));
    }
#if API >= 8
    else {
      sge_t parts[3];
      size_t left = job->window * size, cut = left / (size_t)job->parts;
      for (int p = 0; p < job->parts; p++) {
        size_t bytes = p == job->parts - 1 ? left : cut;
        parts[p] = (sge_t){mhandle, all + (job->window * size - left), (__typeof__(parts[p].size))bytes};
        left -= bytes;
      }
      job->bytes = (gathers ? job->window : own) * size;
      if (gathers) {
        OK(net->iallgather(comm, job->from, job->parts, parts, job->count * size, job->offset * size, job->window * size, mhandle, &job->request));
      } else {
        OK(net->ireducescatter(comm, job->parts, parts, job->to, job->count * size, job->offset * size, job->window * size, job->type, job->op, mhandle, &job->request));
      }
    }
#endif
    done = job->request != NULL;
  }
  return behind;
}

static void check(const job_t* job) {
  size_t size = BYTES[job->type];
  size_t first = piece_start(job, rank), own = piece_start(job, rank + 1) - first;
  size_t n = job->what == ALLREDUCE ? job->count : job->what == ALLGATHER ? job->window : own;
  for (size_t i = 0; job->what == ALLGATHER && i < n; i++) {
    size_t global = job->offset + i;
    double want = input(job->op, global, (int)(global / job->count));
    if (get(job->to + i * size, job->type) != want) FAIL("gathered element %zu is wrong", i);
  }
  size_t begins = job->what == ALLREDUCE ? 0 : job->offset + first;
  if (job->what != ALLGATHER) check_elements(job->to, job->type, job->op, begins, n);
  CHECK(job->in_place || job->to[n * size] == 0x5a);
}

// Runs jobs: all are in progress at once, and are tested over and over in another order.
static void run(job_t* jobs, int n) {
  unsigned char* at = memory;
  // The comms' turns differ from rank to rank. On each comm the order is the same.
  for (int turn = 0; turn < COMMS; turn++)
    for (int j = 0; j < n; j++)
      if (jobs[j].comm == (turn + rank) % COMMS) at = begin(&jobs[j], at);
  for (int left = n; left > 0; alarm_clock()) {
    int moved = 0;
    for (int j = n - 1; j >= 0; j--) {
      if (!jobs[j].request) continue;
      int done = -1, size = -1;
      OK(net->test(jobs[j].request, &done, &size));
      if (!done) continue;
      CHECK((size_t)size == jobs[j].bytes);
      CHECK(net->test(jobs[j].request, &done, &size) != SUCCESS);
      jobs[j].request = NULL;
      left--;
      moved = 1;
    }
    if (!moved) sched_yield();
  }
  for (int j = 0; j < n; j++) check(&jobs[j]);
}

static job_t jobs[WINDOW];
static int njobs;

static void flush_jobs(void) {
  run(jobs, njobs);
  njobs = 0;
}

static void add(job_t job) {
  job.comm = njobs % COMMS;
  if (job.parts == 0) job.parts = 1;
  jobs[njobs++] = job;
  if (njobs == WINDOW) flush_jobs();
}

// Runs a job of many bytes alone. The clock runs for each of them.
static void run_long(job_t job) {
  start_of_run = now();
  add(job);
  flush_jobs();
}

// ---------------------------------------------------------------- what is checked

static void check_answers(void) {
  int ndev = 0, supported = -1;
  OK(net->devices(&ndev));
  CHECK(ndev >= 1);
  properties_t properties;
  memset(&properties, 0x55, sizeof properties);
  OK(net->getProperties(0, &properties));
  CHECK(properties.name && properties.ptrSupport == PTR_HOST && properties.maxComms > 0);
  for (int type = 0; type < 12; type++) {
    for (int op = 0; op < 6; op++) {
      OK(net->reduceSupport(type, op, &supported));
      CHECK(supported == (type < TYPES && op < OPS));
    }
  }
  OK(net->reduceSupport(-1, 0, &supported));
  CHECK(supported == 0 && net->reduceSupport(0, 0, NULL) != SUCCESS);
#if API >= 9
  // A list of no devices, or of one that is not there, joins nothing.
  vprops_t joined = {0};
  int device = -1, after = 0;
  CHECK(properties.maxCollBytes >= MIB && net->makeVDevice(&device, &joined) != SUCCESS);
  joined.ndevs = 1;
  joined.devs[0] = ndev;
  CHECK(net->makeVDevice(&device, &joined) != SUCCESS && net->makeVDevice(NULL, &joined) != SUCCESS && device == -1);
  OK(net->devices(&after));
  CHECK(after == ndev);
#endif
}

// Calls that must fail, and leave the comms as they were.
static void check_misuse(void) {
  void *request = (void*)1, *other = NULL, *mhandle = mhandles[0];
  int done = 0;
  CHECK(net->test(NULL, &done, NULL) != SUCCESS && net->test(comms[0], &done, NULL) != SUCCESS);
  CHECK(net->iallreduce(NULL, memory, memory, 1, F32, SUM, mhandle, mhandle, &request) != SUCCESS && request == NULL);
  CHECK(net->iallreduce(mhandle, memory, memory, 1, F32, SUM, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory, 1, F32, SUM, mhandle, mhandle, NULL) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory, 1, TYPES, SUM, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory, 1, F32, OPS, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory, (count_t)-1, F32, SUM, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory + 4, 2, F32, SUM, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], NULL, memory, 1, F32, SUM, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory, 1, F32, SUM, NULL, mhandle, &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory, memory, 1, F32, SUM, mhandle, mhandles[1], &request) != SUCCESS);
  CHECK(net->iallreduce(comms[0], memory + memory_bytes - 4, memory, 2, F32, SUM, mhandle, mhandle, &request) != SUCCESS);
  CHECK(net->regMr(comms[0], memory, 8, 2, &other) != SUCCESS && net->regMr(comms[0], NULL, 8, PTR_HOST, &other) != SUCCESS);
  CHECK(net->regMr(comms[0], memory, 8, PTR_HOST, NULL) != SUCCESS && net->regMr(NULL, memory, 8, PTR_HOST, &other) != SUCCESS);
  CHECK(net->regMrDmaBuf(comms[0], memory, 8, 2, 0, 0, &other) != SUCCESS);
  CHECK(net->deregMr(comms[0], mhandles[1]) != SUCCESS && net->deregMr(comms[0], comms[0]) != SUCCESS);
  OK(net->deregMr(comms[0], NULL));
  OK(net->regMr(comms[0], memory, 8, PTR_HOST, &other));
  OK(net->deregMr(comms[0], other));
  CHECK(net->deregMr(comms[0], other) != SUCCESS);
  OK(net->iflush(comms[0], memory, 8, mhandle, &request));
  CHECK(request == NULL && net->iflush(comms[0], memory, 8, mhandle, NULL) != SUCCESS);
  CHECK(net->closeColl(mhandle) != SUCCESS && net->closeListen(comms[0]) != SUCCESS);
  OK(net->closeColl(NULL));
  OK(net->closeListen(NULL));
  void *listening, *handles[1], *comm;
  char handle[HANDLE_BYTES], broken[HANDLE_BYTES] = {0};
  OK(start_listening(handle, &listening));
  handles[0] = handle;
  CHECK(net->connect(handles, 0, 0, listening, &comm) != SUCCESS && net->connect(handles, 1, 1, listening, &comm) != SUCCESS);
  CHECK(net->connect(handles, 1, -1, listening, &comm) != SUCCESS && net->connect(NULL, 1, 0, listening, &comm) != SUCCESS);
  CHECK(net->connect(handles, 1, 0, NULL, &comm) != SUCCESS && net->connect(handles, 1, 0, listening, NULL) != SUCCESS);
  handles[0] = NULL;
  CHECK(net->connect(handles, 1, 0, listening, &comm) != SUCCESS);
  handles[0] = broken;
  CHECK(net->connect(handles, 1, 0, listening, &comm) != SUCCESS && comm == NULL);
  handles[0] = shared->handles[0][rank]; // of another listening comm
  CHECK(net->connect(handles, 1, 0, listening, &comm) != SUCCESS && comm == NULL);
  // Alone in a comm.
  handles[0] = handle;
  OK(net->connect(handles, 1, 0, listening, &comm));
  CHECK(net->connect(handles, 1, 0, listening, &other) != SUCCESS);
  OK(net->closeListen(listening));
  CHECK(net->closeListen(listening) != SUCCESS);
  OK(net->regMr(comm, memory, 4096, PTR_HOST, &other));
  put(memory, I32, 5);
  OK(net->iallreduce(comm, memory, memory + 64, 1, I32, SUM, other, other, &request));
  for (done = 0; !done; alarm_clock()) OK(net->test(request, &done, NULL));
  CHECK(get(memory + 64, I32) == 5);
  OK(net->closeColl(comm));
#if API >= 8
  sge_t parts[] = {{mhandle, memory, 8}, {mhandle, memory + 8, 8}};
  size_t all = 8 * (size_t)nranks;
  CHECK(net->iallgather(comms[0], memory, 2, parts, 8, 0, all + 8, mhandle, &request) != SUCCESS);
  CHECK(net->iallgather(comms[0], memory, 1, parts, 8, 0, 16, mhandle, &request) != SUCCESS);
  CHECK(net->iallgather(comms[0], memory, -1, parts, 8, 0, 16, mhandle, &request) != SUCCESS);
  CHECK(net->iallgather(comms[0], memory, 2, NULL, 8, 0, 16, mhandle, &request) != SUCCESS);
  CHECK(net->ireducescatter(comms[0], 1, parts, memory + 64, 8, 2, 8, F32, SUM, mhandle, &request) != SUCCESS);
  CHECK(net->ireducescatter(comms[0], 1, parts, memory + 64, 8, 0, 8, TYPES, SUM, mhandle, &request) != SUCCESS);
#endif
  all_arrive();
}

// As many collectives as a comm takes: more wait.
static void check_many(void) {
  enum { MANY = 70 };
  void* requests[MANY] = {0};
  int started = 0;
  while (started < MANY) {
    unsigned char* at = memory + started * 16;
    put(at, U32, input(SUM, (size_t)started, rank));
    OK(net->iallreduce(comms[0], at, at, 1, U32, SUM, mhandles[0], mhandles[0], &requests[started]));
    if (!requests[started]) break;
    started++;
  }
  CHECK(started == 64);
  for (int i = started - 1; i >= 0; i--)
    for (int done = 0; !done; alarm_clock()) OK(net->test(requests[i], &done, NULL));
  for (int i = 0; i < started; i++) check_element(memory + i * 16, U32, SUM, (size_t)i);
}

// Half way, nobody tests for a while: the collectives go on by themselves.
static void check_absence(void) {
  unsigned char *from = memory, *to = memory + 2 * MIB;
  size_t count = MIB / 4;
  void* request = NULL;
  for (size_t i = 0; i < count; i++) put(from + 4 * i, F32, input(SUM, i, rank));
  OK(net->iallreduce(comms[1], from, to, (count_t)count, F32, SUM, mhandles[1], mhandles[1], &request));
  int done = 0;
  if (rank != 0) {
    for (; !done; alarm_clock()) OK(net->test(request, &done, NULL));
  }
  all_arrive(); // rank 0 has not tested, and the others are done
  for (; !done; alarm_clock()) OK(net->test(request, &done, NULL));
  for (size_t i = 0; i < count; i++) check_element(to + 4 * i, F32, SUM, i);
}

static void check_all(int full) {
  static const size_t COUNTS[] = {0, 1, 1027};
  for (int op = 0; op < OPS; op++)
    for (int type = 0; type < TYPES; type++)
      for (int n = 0; n < 3; n++)
        for (int in_place = 0; in_place < 2; in_place++)
          add((job_t){.what = ALLREDUCE, .type = type, .op = op, .count = COUNTS[n], .in_place = in_place});
  flush_jobs();
#if API >= 8
  for (int type = 0; type < TYPES; type++) {
    for (int in_place = 0; in_place < 2; in_place++) {
      size_t n = (size_t)nranks;
      for (int c = 0; c < 3; c++) {
        size_t count = COUNTS[c];
        size_t windows[][2] = {{0, n * count}, {count / 2, (n - 1) * count}, {count, count}, {count * (n - 1), count / 3}, {0, 0}};
        for (int w = 0; w < 5; w++) {
          int parts = in_place ? 1 : 1 + w % 3, op = (type + w + in_place) % OPS; // the last window is empty
          add((job_t){.what = ALLGATHER, .type = type, .op = MAX, .count = count, .offset = windows[w][0], .window = windows[w][1], .in_place = in_place, .parts = parts});
          add((job_t){.what = REDUCESCATTER, .type = type, .op = op, .count = count, .offset = windows[w][0], .window = windows[w][1], .in_place = in_place, .parts = parts});
        }
      }
    }
  }
  flush_jobs();
#endif
  size_t bytes = full ? 64 * (size_t)MIB : 3 * (size_t)MIB + 4;
  int ops = full ? OPS : 1, first_type = full ? I8 : F32, last_type = full ? BF16 : F32;
  for (int op = 0; op < ops; op++)
    for (int type = first_type; type <= last_type; type++)
      for (int in_place = 0; in_place < 2; in_place++)
        run_long((job_t){.what = ALLREDUCE, .type = type, .op = op, .count = bytes / BYTES[type], .in_place = in_place});
#if API >= 8
  size_t n = (size_t)nranks, block = bytes / BYTES[F32] / n;
  for (int cut = 0; cut < 2; cut++) {
    size_t window = cut ? block : block * n, offset = cut ? block / 3 : 0;
    for (int in_place = 0; in_place <= full; in_place++) {
      job_t job = {.what = ALLGATHER, .type = F32, .op = SUM, .count = block, .offset = offset, .window = window, .in_place = in_place};
      run_long(job);
      job.what = REDUCESCATTER;
      for (job.op = 0; job.op < ops; job.op++) run_long(job);
    }
  }
#endif
}

static void check_big(void) {
#if API >= 9
  size_t n = (size_t)nranks, count = ((size_t)1 << 31) + 5, block = count / n + 1;
  job_t all[] = {
      {.what = ALLREDUCE, .type = U8, .op = MAX, .count = count},
      {.what = ALLGATHER, .type = U8, .op = MAX, .count = block, .window = block * n},
      {.what = REDUCESCATTER, .type = U8, .op = MAX, .count = block, .window = block * n},
  };
  for (int j = 0; j < 3; j++) {
    start_of_run = now(); // the clock runs for each of them
    job_t* job = &all[j];
    job->in_place = job->parts = 1;
    begin(job, memory);
    int size = -1;
    for (int done = 0; !done; alarm_clock()) OK(net->test(job->request, &done, &size));
    CHECK((size_t)size == (job->bytes < INT32_MAX ? job->bytes : INT32_MAX));
    check(job);
  }
#endif
}

// A rank is gone, or closes its comm, with collectives in progress. The others hear of it.
static void check_loss(int lost, int is_killed) {
  job_t job = {.what = ALLREDUCE, .type = F32, .op = SUM, .count = 1000};
  job_t again = job;
  run(&job, 1);
  unsigned char* at = memory;
  if (rank == lost && is_killed) {
    all_arrive();
    kill(getpid(), SIGKILL);
  }
  if (rank != lost || !is_killed) at = begin(&again, at);
  all_arrive();
  double since = now();
  if (rank == lost) {
    // The other ranks may be late, so this collective need not be done.
    OK(net->closeColl(comms[0]));
    CHECK(now() - since < 10);
    int done;
    CHECK(net->test(again.request, &done, NULL) != SUCCESS);
    OK(net->closeColl(comms[1]));
    OK(finalize());
    exit(0);
  }
  // All collectives of this comm fail, now and later.
  int code = SUCCESS;
  while (code == SUCCESS) {
    alarm_clock();
    if (again.request) {
      int done = 0;
      code = net->test(again.request, &done, NULL);
      if (done) again.request = NULL;
    } else {
      code = net->iallreduce(comms[0], memory, memory, 1, F32, SUM, mhandles[0], mhandles[0], &again.request);
    }
  }
  CHECK(code == REMOTE_ERROR);
  char named[32];
  snprintf(named, sizeof named, "rank %d: ", lost);
  CHECK(strstr(last_warning, named) != NULL);
  CHECK(now() - since < 20);
  if (again.request) {
    int done = 0;
    CHECK(net->test(again.request, &done, NULL) == code && !done);
  }
  CHECK(net->iallreduce(comms[0], memory, memory, 1, F32, SUM, mhandles[0], mhandles[0], &again.request) != SUCCESS);
  OK(net->closeColl(comms[0]));
  OK(net->closeColl(comms[1]));
  OK(finalize());
  exit(0);
}

// A rank has not started a collective. The others deregister and free its memory before they close the comm, as NCCL does
// when it aborts. Nothing reads or writes the memory when the late rank comes.
static void check_free(int late) {
  enum { COUNT = MIB };
  job_t job = {.what = ALLREDUCE, .type = F32, .op = SUM, .count = 1000};
  run(&job, 1);
  size_t bytes = (size_t)COUNT * BYTES[F32];
  void* data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void *mhandle, *unused, *request = NULL;
  int done = 0, code = SUCCESS;
  CHECK(data != MAP_FAILED);
  OK(net->regMr(comms[0], data, (reg_bytes_t)bytes, PTR_HOST, &mhandle));
  OK(net->regMr(comms[0], data, (reg_bytes_t)bytes, PTR_HOST, &unused));
  if (rank != late) {
    OK(net->iallreduce(comms[0], data, data, COUNT, F32, SUM, mhandle, mhandle, &request));
    CHECK(request != NULL);
    OK(net->deregMr(comms[0], unused)); // this ends nothing
    OK(net->test(request, &done, NULL));
    CHECK(!done);
  }
  all_arrive(); // all but one have started
  if (rank != late) {
    double since = now();
    OK(net->deregMr(comms[0], mhandle));
    CHECK(now() - since < 10 && munmap(data, bytes) == 0);
  }
  all_arrive(); // the memory is gone
  if (rank == late) code = net->iallreduce(comms[0], data, data, COUNT, F32, SUM, mhandle, mhandle, &request);
  for (; code == SUCCESS; alarm_clock()) {
    code = net->test(request, &done, NULL);
    CHECK(!done);
  }
  CHECK(code == REMOTE_ERROR && strstr(last_warning, "memory is deregistered") != NULL);
  all_arrive(); // the late rank has tried
}

// A rank is stopped before a collective. The others name it, and all complete the collective once it goes on.
static void check_stop(int stopped) {
  job_t job = {.what = ALLREDUCE, .type = F32, .op = SUM, .count = 100000};
  char named[64];
  run(&job, 1);
  // A rank that is done may still have data to send to the others.
  all_arrive();
  if (rank == stopped) {
    shared->stopped = getpid();
    raise(SIGSTOP);
  }
  for (; shared->stopped == 0; sched_yield()) alarm_clock();
  // The verdict begins with the rank at fault. It has no pid if the rank was stopped before its first report.
  snprintf(named, sizeof named, ": rank %d ", stopped);
  begin(&job, memory);
  int done = 0, has_named = rank == stopped;
  for (; !done; alarm_clock()) {
    OK(net->test(job.request, &done, NULL));
    if (!has_named && strstr(last_warning, named) != NULL) {
      has_named = 1;
      shared->warned++;
    }
  }
  CHECK(has_named);
  check(&job);
}

static void check_until(const char* path) {
  enum { COUNT = 1 << 16 };
  float* data = (float*)memory;
  for (int round = 0, is_last = 0; !is_last; round++) {
    for (int i = 1; i < COUNT; i++) data[i] = (float)(round % 1000);
    data[0] = (float)(rank == 0 && access(path, F_OK) == 0);
    void* request = NULL;
    OK(net->iallreduce(comms[0], data, data, COUNT, F32, SUM, mhandles[0], mhandles[0], &request));
    CHECK(request != NULL);
    for (int done = 0; !done; alarm_clock()) OK(net->test(request, &done, NULL));
    for (int i = 1; i < COUNT; i++) CHECK(data[i] == (float)(round % 1000 * nranks));
    is_last = data[0] > 0;
  }
}

static void enter_namespace(void) {
  const char* names = getenv("COLLNET_NETNS");
  if (names == NULL) return;
  const char* second = strchr(names, ',');
  CHECK(second != NULL);
  char path[256];
  if (rank % 2 == 0) {
    snprintf(path, sizeof path, "/run/netns/%.*s", (int)(second - names), names);
  } else {
    snprintf(path, sizeof path, "/run/netns/%s", second + 1);
  }
  int namespace = open(path, O_RDONLY | O_CLOEXEC);
  CHECK(namespace >= 0 && setns(namespace, CLONE_NEWNET) == 0);
  close(namespace);
}

static void check_off(void) {
  int ndev = -1;
  char handle[HANDLE_BYTES];
  void* listening = NULL;
  CHECK(net->devices(&ndev) != SUCCESS); // before init
  OK(init());
  OK(net->devices(&ndev));
  CHECK(ndev == 0 && !logged_on);
  CHECK(start_listening(handle, &listening) != SUCCESS && listening == NULL);
  CHECK(strstr(last_warning, "NCCL_COLLNET_ENABLE=1") != NULL);
  OK(finalize());
}

int main(int argc, char** argv) {
  if (argc < 4) FAIL("usage: collnet LIBRARY RANKS brief|full|big|kill|close|free|stop|until|off [RANK|PATH]");
  const char* mode = argv[3];
  nranks = atoi(argv[2]);
  int is_until = strcmp(mode, "until") == 0, is_stopped = strcmp(mode, "stop") == 0;
  int lost = argc > 4 && !is_until ? atoi(argv[4]) : -1;
  int is_killed = strcmp(mode, "kill") == 0, is_full = strcmp(mode, "full") == 0, is_big = strcmp(mode, "big") == 0;
  CHECK(nranks >= 1 && nranks <= RANKS_MAX);
  start_of_run = now();
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  pid_t children[RANKS_MAX];
  for (int of = 0; of < nranks; of++) {
    children[of] = fork();
    if (children[of] == 0) {
      rank = of;
      prctl(PR_SET_PDEATHSIG, SIGKILL); // a stopped rank would outlive a parent that fails
      break;
    }
  }
  if (rank < 0) {
    int failed = 0;
    if (is_stopped) {
      int status = 0;
      CHECK(waitpid(children[lost], &status, WUNTRACED) == children[lost] && WIFSTOPPED(status));
      for (; shared->warned < nranks - 1; usleep(1000)) alarm_clock();
      kill(children[lost], SIGCONT);
    }
    for (int of = 0; of < nranks; of++) {
      int status = 0;
      CHECK(waitpid(children[of], &status, 0) == children[of]);
      int is_right = is_killed && of == lost ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (!is_right) fprintf(stderr, "rank %d ends with status %#x\n", of, status);
      if (!is_right && !failed) { // the others would wait for it
        for (int other = of + 1; other < nranks; other++) kill(children[other], SIGKILL);
      }
      failed |= !is_right;
    }
    if (failed) return 1;
    puts("ok");
    return 0;
  }
  enter_namespace();
  void* opened = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!opened) FAIL("%s", dlerror());
  net = dlsym(opened, "ncclCollNetPlugin_v" TEXT(API));
  if (!net) FAIL("%s", dlerror());
  reduce_all();
  CHECK(strcmp(net->name, "Invar") == 0);
  if (strcmp(mode, "off") == 0) {
    check_off();
    return 0;
  }
  meet(is_big ? ((size_t)1 << 31) + 4096 : (is_full ? 130 : 20) * (size_t)MIB);
  if (is_big) {
    check_big();
  } else if (is_until) {
    CHECK(argc > 4);
    check_until(argv[4]);
  } else if (is_stopped) {
    check_stop(lost);
  } else if (strcmp(mode, "free") == 0) {
    check_free(lost);
  } else if (lost >= 0) {
    check_loss(lost, is_killed);
  } else {
    check_answers();
    check_misuse();
    check_many();
    check_absence();
    check_all(is_full);
  }
  part();
  return 0;
}
