// NCCL's interface of a network plugin, in version API (6 to 12).
// Written from the facts in NCCL's net_v6.h to net_v12.h; see also src/abi.rs.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { SUCCESS, UNHANDLED_CUDA, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };
enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { PTR_HOST = 1 };
enum { HANDLE_BYTES = 128 };

typedef void (*logger_t)(int level, unsigned long subsystems, const char* file, int line, const char* format, ...);
typedef int (*profiler_t)(void** event, int what, void* step, int64_t id, void* description);
typedef struct {
  int trafficClass;
} config_t;

// A profiler's description of work on a queue pair, and on a socket (net_ib_v1.h, net_socket_v1.h).
typedef struct {
  uint8_t type;
  union {
    struct {
      int device;
      uint64_t wr_id;
      int opcode;
      int qpNum;
      size_t length;
    } qp;
  };
} qp_description_t;
typedef struct {
  uint8_t type;
  union {
    struct {
      int fd;
      int op;
      size_t length;
    } sock;
  };
} socket_description_t;

#if API >= 9 // bytes of a message
typedef size_t bytes_t;
#else
typedef int bytes_t;
#endif
#if API >= 8 // bytes to register
typedef size_t reg_bytes_t;
#else
typedef int reg_bytes_t;
#endif

typedef struct {
  int ndevs;
  int devs[API >= 12 ? 8 : 4];
} vprops_t;

typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int ptrSupport;
#if API >= 8
  int regIsGlobal;
#endif
#if API >= 9
  int forceFlush;
#endif
  int speed;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
#if API >= 7
  int netDeviceType;
  int netDeviceVersion;
#endif
#if API >= 9
  vprops_t vProps;
  size_t maxP2pBytes;
  size_t maxCollBytes;
#endif
#if API >= 11
  int maxMultiRequestSize;
#endif
#if API >= 12
  int16_t railId;
  int16_t planeId;
#endif
} properties_t;

typedef struct {
  const char* name;
#if API >= 11
  int (*init)(void** context, uint64_t communicator, config_t*, logger_t, profiler_t);
#elif API >= 10
  int (*init)(logger_t, profiler_t);
#else
  int (*init)(logger_t);
#endif
  int (*devices)(int* ndev);
  int (*getProperties)(int device, properties_t*);
#if API >= 11
  int (*listen)(void* context, int device, void* handle, void** comm);
  int (*connect)(void* context, int device, void* handle, void** comm, void** deviceComm);
#elif API >= 10
  int (*listen)(int device, void* handle, void** comm);
  int (*connect)(int device, config_t*, void* handle, void** comm, void** deviceComm);
#elif API >= 7
  int (*listen)(int device, void* handle, void** comm);
  int (*connect)(int device, void* handle, void** comm, void** deviceComm);
#else
  int (*listen)(int device, void* handle, void** comm);
  int (*connect)(int device, void* handle, void** comm);
#endif
#if API >= 7
  int (*accept)(void* listening, void** comm, void** deviceComm);
#else
  int (*accept)(void* listening, void** comm);
#endif
  int (*regMr)(void* comm, void* data, reg_bytes_t size, int type, void** mhandle);
  int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  int (*deregMr)(void* comm, void* mhandle);
#if API >= 10
  int (*isend)(void* comm, void* data, bytes_t size, int tag, void* mhandle, void* step, void** request);
  int (*irecv)(void* comm, int n, void** data, bytes_t* sizes, int* tags, void** mhandles, void** steps,
               void** request);
#else
  int (*isend)(void* comm, void* data, bytes_t size, int tag, void* mhandle, void** request);
  int (*irecv)(void* comm, int n, void** data, bytes_t* sizes, int* tags, void** mhandles, void** request);
#endif
  int (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
  int (*test)(void* request, int* done, int* sizes);
  int (*closeSend)(void* comm);
  int (*closeRecv)(void* comm);
  int (*closeListen)(void* comm);
#if API >= 7
  int (*getDeviceMr)(void* comm, void* mhandle, void** deviceMhandle);
  int (*irecvConsumed)(void* comm, int n, void* request);
#endif
#if API >= 9
  int (*makeVDevice)(int* device, vprops_t*);
#endif
#if API >= 11
  int (*finalize)(void* context);
  int (*setNetAttr)(void* context, void* attributes);
#endif
} net_t;
