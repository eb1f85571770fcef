// Drives the plugin as NCCL does. Two processes, a receiver and a sender, open the plugin by name and
// move messages.
//
//   drive LIBRARY            prints "ok" and exits with 0, or prints the fault and exits with 1
//   drive LIBRARY threads    runs both ends in one process, for devices that reach no other process
#define _GNU_SOURCE
#include "net.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define SYMBOL "ncclNetPlugin_v" TEXT(API)

// A slow machine may give more time.
#ifndef SECONDS_MAX
#define SECONDS_MAX 120
#endif

enum { MIB = 1 << 20, GROUP = 8, WINDOW = API >= 7 ? 32 : 8 };

static _Thread_local const char* who = "both";
static net_t* net;
#if API >= 11
static void* context;
#endif
static int logged_using;

#define FAIL(...) (fprintf(stderr, "v" TEXT(API) " %s: ", who), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(condition) \
  do { \
    if (!(condition)) FAIL("line %d: %s", __LINE__, #condition); \
  } while (0)
#define OK(call) CHECK((call) == SUCCESS)

static int is_set(const char* variable, const char* value) {
  const char* set = getenv(variable);
  return set && strcmp(set, value) == 0;
}

// Whether the plugin registers memory with relaxed ordering: on RDMA devices, unless it is off.
static int is_relaxed(void) { return is_set("INVAR_TRANSPORT", "ib") && !is_set("NCCL_IB_PCI_RELAXED_ORDERING", "0"); }

static void logger(int level, unsigned long subsystems, const char* file, int line, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  CHECK(subsystems != 0 && file != NULL);
  if (level == LOG_WARN) fprintf(stderr, "%s:%d %s\n", file, line, text);
  if (level == LOG_INFO && strncmp(text, "NET/Invar : Using", 17) == 0) {
    const char* on = text + 18;
    if (is_set("INVAR_TRANSPORT", "socket")) {
      CHECK(strcmp(on, "[0]lo:127.0.0.1<0>") == 0);
    } else {
      const char* hca = getenv("NCCL_IB_HCA");
      const char* name = is_set("INVAR_TRANSPORT", "soft") ? "soft" : is_set("INVAR_TRANSPORT", "custom") ? "unix" : hca ? hca : "null";
      CHECK(strncmp(on, "[0]", 3) == 0 && strncmp(on + 3, name, strlen(name)) == 0);
      const char* port = strchr(on, ':');
      CHECK(port && strcmp(port, is_relaxed() ? ":1/RoCE [RO]; OOB lo:127.0.0.1<0>" : ":1/RoCE; OOB lo:127.0.0.1<0>") == 0);
    }
    logged_using = 1;
  }
}

#if API >= 10
// The address by which NCCL names a message's step, and the number of events that started and stopped.
static int step_of_nccl;
static _Atomic int started, stopped;
static int profiler(void** event, int what, void* step, int64_t id, void* description) {
  if (what == 0) { // start
    CHECK(step == &step_of_nccl && *(const uint8_t*)description == 1);
    if (is_set("INVAR_TRANSPORT", "socket")) {
      const socket_description_t* of = description;
      struct stat file;
      CHECK(id == (2 << 16 | 1) && of->sock.op == (strcmp(who, "receiver") == 0) && of->sock.length <= MIB);
      CHECK(fstat(of->sock.fd, &file) == 0 && S_ISSOCK(file.st_mode));
    } else {
      const qp_description_t* of = description;
      CHECK(id == (1 << 16 | 1) && of->qp.device == 0 && of->qp.qpNum > 0 && of->qp.length <= MIB);
      CHECK(strcmp(who, "receiver") == 0 ? of->qp.opcode == 129 && of->qp.length == 0 : of->qp.opcode <= 1);
    }
    *event = (void*)(uintptr_t)++started;
  } else {
    CHECK(what == 1 && (uintptr_t)*event >= 1 && (uintptr_t)*event <= (uintptr_t)started);
    stopped++;
  }
  return SUCCESS;
}
#endif

// Takes the place of the C library's function and reports eight CPUs, so that the plugin starts helper
// threads.
int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t* cpus) {
  (void)process;
  CPU_ZERO_S(bytes, cpus);
  for (int cpu = 0; cpu < 8; cpu++) CPU_SET_S(cpu, bytes, cpus);
  return 0;
}

// Takes the place of the C library's function and hides the control group, so that no quota limits the
// CPUs.
int open64(const char* path, int flags, ...) {
  if (strcmp(path, "/proc/self/cgroup") == 0) return errno = ENOENT, -1;
  va_list mode;
  va_start(mode, flags);
  int opened = openat(AT_FDCWD, path, flags, flags & O_CREAT ? va_arg(mode, unsigned) : 0);
  va_end(mode);
  return opened;
}

static struct timespec start;

static void alarm_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec - start.tv_sec > SECONDS_MAX) FAIL("this takes too long");
}

static int threads(void) {
  int n = 0;
  DIR* directory = opendir("/proc/self/task");
  for (struct dirent* entry; (entry = readdir(directory));) n += entry->d_name[0] != '.';
  closedir(directory);
  return n;
}

static int sockets(void) {
  int n = 0;
  DIR* directory = opendir("/proc/self/fd");
  struct stat file;
  for (struct dirent* entry; (entry = readdir(directory));)
    n += fstatat(dirfd(directory), entry->d_name, &file, 0) == 0 && S_ISSOCK(file.st_mode);
  closedir(directory);
  return n;
}

static int asked(const char* variable) {
  const char* set = getenv(variable);
  return set ? atoi(set) : 0;
}

// ---------------------------------------------------------------- what differs by version

static int init(void) {
#if API >= 11
  config_t config = {-1};
  return net->init(&context, 7, &config, logger, profiler);
#elif API >= 10
  return net->init(logger, profiler);
#else
  return net->init(logger);
#endif
}

static int start_listening(int device, void* handle, void** comm) {
#if API >= 11
  return net->listen(context, device, handle, comm);
#else
  return net->listen(device, handle, comm);
#endif
}

static int go_on_connecting(int device, void* handle, void** comm) {
#if API >= 11
  void* deviceComm = NULL;
  return net->connect(context, device, handle, comm, &deviceComm);
#elif API >= 10
  config_t config = {-1};
  void* deviceComm = NULL;
  return net->connect(device, &config, handle, comm, &deviceComm);
#elif API >= 7
  void* deviceComm = NULL;
  return net->connect(device, handle, comm, &deviceComm);
#else
  return net->connect(device, handle, comm);
#endif
}

static int go_on_accepting(void* listening, void** comm) {
#if API >= 7
  void* deviceComm = NULL;
  return net->accept(listening, comm, &deviceComm);
#else
  return net->accept(listening, comm);
#endif
}

static void* isend(void* comm, void* data, size_t size, int tag, void* mhandle) {
  void* request = NULL;
  while (!request) {
#if API >= 10
    OK(net->isend(comm, data, (bytes_t)size, tag, mhandle, &step_of_nccl, &request));
#else
    OK(net->isend(comm, data, (bytes_t)size, tag, mhandle, &request));
#endif
    alarm_clock();
  }
  return request;
}

static void* irecv(void* comm, int n, void** data, bytes_t* sizes, int* tags, void** mhandles) {
  void* request = (void*)1; // NCCL_NET_OPTIONAL_RECV_COMPLETION
#if API >= 10
  void* steps[GROUP];
  for (int i = 0; i < n; i++) steps[i] = &step_of_nccl;
  OK(net->irecv(comm, n, data, sizes, tags, mhandles, steps, &request));
#else
  OK(net->irecv(comm, n, data, sizes, tags, mhandles, &request));
#endif
  CHECK(request != NULL && request != (void*)1);
  return request;
}

// ---------------------------------------------------------------- messages

static unsigned char byte(size_t at, int round) { return (unsigned char)(at * 31 + at / 509 + round * 7); }

static void fill(unsigned char* data, size_t size, int round) {
  for (size_t i = 0; i < size; i++) data[i] = byte(i, round);
}

static void compare(const unsigned char* data, size_t size, int round) {
  for (size_t i = 0; i < size; i++)
    if (data[i] != byte(i, round)) FAIL("round %d: byte %zu is wrong", round, i);
}

static void wait_for(void* request, int* sizes) {
  for (int done = 0; !done;) {
    OK(net->test(request, &done, sizes));
    alarm_clock();
  }
}

// Both sides know these sizes: of single messages, and of a group's messages.
static const size_t SIZES[] = {8, 0, 1, 4096, 65537, MIB, 8};
enum { SINGLES = sizeof SIZES / sizeof *SIZES };
static size_t group_size(int i) { return (size_t)i * 1000; }

static void receiver(void* comm, unsigned char* memory, void* mhandle) {
  for (int round = 0; round < SINGLES; round++) {
    void* data = memory;
    bytes_t size = MIB;
    int tag = 40 + round, got = -1;
    memset(memory, 0xee, MIB);
    wait_for(irecv(comm, 1, &data, &size, &tag, &mhandle), &got);
    CHECK(got == (int)SIZES[round]);
    compare(memory, SIZES[round], round);
    CHECK(SIZES[round] == MIB || memory[SIZES[round]] == 0xee);
    void* flush = NULL;
    OK(net->iflush(comm, 1, &data, &got, &mhandle, &flush));
    if (flush) wait_for(flush, NULL);
  }
  // Post as many groups as possible before the test of the first.
  void* requests[WINDOW];
  unsigned char* end = memory + MIB;
  for (int w = 0; w < WINDOW; w++) {
    void *data[GROUP], *mhandles[GROUP];
    bytes_t sizes[GROUP];
    int tags[GROUP];
    for (int i = 0; i < GROUP; i++) {
      data[i] = end + ((size_t)w * GROUP + i) * 8192;
      sizes[i] = 8192;
      tags[i] = i;
      mhandles[i] = mhandle;
    }
    requests[w] = irecv(comm, GROUP, data, sizes, tags, mhandles);
  }
  // Test in turn, over and over, as NCCL does. A test without `done` must fail and end nothing.
  int done[WINDOW] = {0}, got[GROUP], untold = 1;
  for (int left = WINDOW; left > 0; alarm_clock()) {
    for (int w = WINDOW - 1; w >= 0; w--) {
      if (done[w]) continue;
      OK(net->test(requests[w], &done[w], got));
      if (!done[w]) {
        if (untold) CHECK(net->test(requests[w], NULL, NULL) != 0);
        untold = 0;
        continue;
      }
      left--;
      for (int i = 0; i < GROUP; i++) {
        CHECK(got[i] == (int)group_size(i));
        compare(end + ((size_t)w * GROUP + i) * 8192, group_size(i), w);
      }
    }
  }
}

static void sender(void* comm, unsigned char* memory, void* mhandle) {
  for (int round = 0; round < SINGLES; round++) {
    int sent = -1;
    fill(memory, SIZES[round], round);
    wait_for(isend(comm, memory, SIZES[round], 40 + round, mhandle), &sent);
    CHECK(sent == (int)SIZES[round]);
  }
  static void* requests[WINDOW * GROUP];
  for (int w = 0; w < WINDOW; w++) {
    unsigned char* data = memory + (size_t)w * 8192;
    fill(data, 8192, w);
    for (int i = GROUP - 1; i >= 0; i--) // in another order than the receives
      requests[w * GROUP + i] = isend(comm, data, group_size(i), i, mhandle);
  }
  for (int i = 0; i < WINDOW * GROUP; i++) wait_for(requests[i], NULL);
}

// ---------------------------------------------------------------- two processes

static size_t memory_bytes(void) { return MIB + (size_t)WINDOW * GROUP * 8192; }

static void check_properties(void) {
  const char* transport = getenv("INVAR_TRANSPORT");
  // NCCL may share comms only where the sender is complete first.
  int buffers = transport && strcmp(transport, "socket") == 0 ? 1 : GROUP;
  int ndev = 0;
  OK(net->devices(&ndev));
  CHECK(ndev >= 1);
  for (int device = 0; device < ndev; device++) {
    properties_t properties;
    memset(&properties, 0x55, sizeof properties);
    OK(net->getProperties(device, &properties));
    CHECK(properties.name && strlen(properties.name) > 0);
    CHECK(properties.ptrSupport & PTR_HOST);
    CHECK(properties.speed > 0 && properties.maxComms > 0);
    CHECK(properties.maxRecvs == buffers);
#if API >= 9
    CHECK(properties.vProps.ndevs == 1 && properties.vProps.devs[0] == device);
    CHECK(properties.maxP2pBytes >= MIB && properties.maxP2pBytes < (1ul << 31));
#endif
#if API >= 11
    CHECK(properties.maxMultiRequestSize == 1);
#endif
#if API >= 12
    CHECK(properties.railId == -1 && properties.planeId == -1);
#endif
  }
}

// An end, and its pipes to and from the other end.
typedef struct {
  int in, out, is_sender;
} end_t;

// Threads and sockets of this process before it loads the plugin.
static int threads_before, sockets_before;

// Runs one end.
static void* side(void* end_of) {
  const end_t* end = end_of;
  who = end->is_sender ? "sender" : "receiver";
  unsigned char* memory = malloc(memory_bytes());
  char handle[HANDLE_BYTES];
  void *listening = NULL, *comm = NULL, *mhandle = NULL;
  if (end->is_sender) {
    CHECK(read(end->in, handle, sizeof handle) == sizeof handle);
    while (!comm) {
      OK(go_on_connecting(0, handle, &comm));
      alarm_clock();
    }
  } else {
    OK(start_listening(0, handle, &listening));
    CHECK(listening != NULL);
    CHECK(write(end->out, handle, sizeof handle) == sizeof handle);
    while (!comm) {
      OK(go_on_accepting(listening, &comm));
      alarm_clock();
    }
    OK(net->closeListen(listening));
  }
  OK(net->regMr(comm, memory, (reg_bytes_t)memory_bytes(), PTR_HOST, &mhandle));
  (end->is_sender ? sender : receiver)(comm, memory, mhandle);
  if (is_set("INVAR_TRANSPORT", "socket")) {
    int helpers = asked("NCCL_SOCKET_NTHREADS");
    const int keeper = 1; // looks after connections
    CHECK(threads() == threads_before + helpers + keeper);
    // Beside the sockets for long messages there are main and control, and the listener of an end that may be called
    // again.
    int listeners = end->is_sender ? 0 : 1;
    CHECK(sockets() == sockets_before + 2 + listeners + helpers * asked("NCCL_NSOCKS_PERTHREAD"));
  }
  // Neither end leaves before the other has all its messages.
  char there = 1;
  CHECK(write(end->out, &there, 1) == 1 && read(end->in, &there, 1) == 1);
  OK(net->deregMr(comm, mhandle));
  OK((end->is_sender ? net->closeSend : net->closeRecv)(comm));
  free(memory);
  return NULL;
}

// Opens the plugin, runs the ends of this process, and closes the plugin.
static void run(const char* library, end_t* ends, int n) {
  threads_before = threads();
  sockets_before = sockets();
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!opened) FAIL("%s", dlerror());
  net = dlsym(opened, SYMBOL);
  if (!net) FAIL("%s", dlerror());
  CHECK(strcmp(net->name, "Invar") == 0);
  logged_using = 0;
#if API >= 10
  started = stopped = 0;
#endif
  int done;
  CHECK(net->test(NULL, &done, NULL) != 0);  // before init every call fails
  OK(init());
  CHECK(logged_using);
  check_properties();
#if API >= 11
  OK(net->setNetAttr(context, NULL));
#endif
  pthread_t other;
  if (n == 2) CHECK(pthread_create(&other, NULL, side, &ends[1]) == 0);
  side(&ends[0]);
  if (n == 2) CHECK(pthread_join(other, NULL) == 0);
#if API >= 11
  CHECK(started >= n * (SINGLES + WINDOW * GROUP) && stopped == started);
#elif API >= 10
  CHECK(started == 0); // see `init_v10`
#endif
#if API >= 11
  // NCCL forgets the listening comms of a communicator that it aborts.
  int open_before = sockets();
  char handle[HANDLE_BYTES];
  void* forgotten;
  OK(net->listen(context, 0, handle, &forgotten));
  CHECK(sockets() > open_before);
  OK(net->finalize(context));
  CHECK(sockets() <= open_before);
#endif
  OK(dlclose(opened));
  // The kernel may list a joined thread for a moment longer.
  while (threads() != threads_before) {
    alarm_clock();
    sched_yield();
  }
}

int main(int argc, char** argv) {
  int in_threads = argc == 3 && strcmp(argv[2], "threads") == 0;
  if (argc != 2 && !in_threads) FAIL("usage: drive LIBRARY [threads]");
  clock_gettime(CLOCK_MONOTONIC, &start);
  int there[2], back[2];
  CHECK(pipe(there) == 0 && pipe(back) == 0);
  end_t ends[2] = {{back[0], there[1], 0}, {there[0], back[1], 1}};
  pid_t child = in_threads ? -1 : fork();
  // Run twice, because NCCL may start the plugin again.
  for (int i = 0; i < 2; i++) run(argv[1], &ends[child == 0], in_threads ? 2 : 1);
  if (child == 0) return 0;
  int status = 0;
  CHECK(in_threads || waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  puts("ok");
  return 0;
}
