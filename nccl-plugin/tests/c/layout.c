// Prints where a C compiler puts what src/abi.rs lays out.
#include "net.h"
#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define AT(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void) {
  SIZE(properties_t);
  AT(properties_t, guid);
  AT(properties_t, ptrSupport);
  AT(properties_t, speed);
  AT(properties_t, maxRecvs);
#if API >= 7
  AT(properties_t, netDeviceVersion);
#endif
#if API >= 8
  AT(properties_t, regIsGlobal);
#endif
#if API >= 9
  AT(properties_t, forceFlush);
  AT(properties_t, vProps);
  AT(properties_t, maxP2pBytes);
  AT(properties_t, maxCollBytes);
#endif
#if API >= 11
  AT(properties_t, maxMultiRequestSize);
#endif
#if API >= 12
  AT(properties_t, railId);
  AT(properties_t, planeId);
#endif
  SIZE(net_t);
#if API >= 11
  AT(net_t, finalize);
#else
  AT(net_t, closeListen);
#endif
  return 0;
}
