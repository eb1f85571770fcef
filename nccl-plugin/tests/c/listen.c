// Shows the result and the warnings of `listen`.
//
//   listen LIBRARY          prints each warning, and the result code
//   listen LIBRARY panic    makes one call that panics and one that does not, and prints both
#include "net.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define SYMBOL "ncclNetPlugin_v" TEXT(API)

static int broken;

// Takes the place of the C library's function. Rust's standard library panics if it gets no random
// number for the seed of a hash map, and an open device has a hash map.
ssize_t getrandom(void* buffer, size_t size, unsigned flags) {
  (void)flags;
  if (broken) return errno = EIO, -1;
  for (size_t i = 0; i < size; i++) ((unsigned char*)buffer)[i] = (unsigned char)(i * 101);
  return (ssize_t)size;
}

static void logger(int level, unsigned long subsystems, const char* file, int line, const char* format, ...) {
  (void)subsystems, (void)file, (void)line;
  if (level != LOG_WARN) return;
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
}

static void* listen_once(void* net_of) {
  const net_t* net = net_of;
  char handle[HANDLE_BYTES];
  void* listening = NULL;
  printf("listen: %d\n", net->listen(0, handle, &listening));
  net->closeListen(listening);
  return NULL;
}

int main(int argc, char** argv) {
  void* library = argc >= 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  net_t* net = library ? dlsym(library, SYMBOL) : NULL;
  if (!net) return fprintf(stderr, "%s\n", dlerror()), 1;
  if (net->init(logger) != SUCCESS) return 1;
  for (broken = argc > 2; broken >= 0; broken--) {
    // Each thread keeps its seed, so each call gets a thread of its own.
    pthread_t thread;
    if (pthread_create(&thread, NULL, listen_once, net) || pthread_join(thread, NULL)) return 1;
  }
  return 0;
}
