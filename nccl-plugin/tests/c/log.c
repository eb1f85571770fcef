// Shows the plugin's log messages when NCCL starts the plugin.
//
//   log LIBRARY    prints each message behind its level
#include "net.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define SYMBOL "ncclNetPlugin_v" TEXT(API)

static void logger(int level, unsigned long subsystems, const char* file, int line, const char* format, ...) {
  (void)subsystems, (void)file, (void)line;
  va_list arguments;
  va_start(arguments, format);
  printf("%d ", level);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
}

int main(int argc, char** argv) {
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  net_t* net = dlsym(library, SYMBOL);
  if (!net) return fprintf(stderr, "%s\n", dlerror()), 1;
  return net->init(logger) != SUCCESS;
}
