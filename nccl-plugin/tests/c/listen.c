// Shows what the plugin gives and warns of when NCCL listens.
//
//   listen LIBRARY          prints each warning, and the code
//   listen LIBRARY panic    the same, of a call that panics, and of one after it
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

// In the place of the C library's. Rust's standard library panics where there is no random number to
// seed its hash maps with, and a device that opens has one.
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
    // The seed is kept for each thread.
    pthread_t thread;
    if (pthread_create(&thread, NULL, listen_once, net) || pthread_join(thread, NULL)) return 1;
  }
  return 0;
}
