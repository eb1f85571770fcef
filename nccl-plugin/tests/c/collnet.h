// NCCL's interface of a collNet plugin, in version API (6 to 12).
// Written from the facts in NCCL's net_v6.h to net_v12.h; see also src/abi/collnet.rs.
#pragma once
#include "net.h"

#if API >= 9 // elements of an all-reduce
typedef size_t count_t;
#else
typedef int count_t;
#endif

typedef struct { // a part of a window of all ranks' blocks, since version 8
  void* mhandle;
  void* address;
#if API >= 9
  size_t size;
#else
  uint32_t size;
#endif
} sge_t;

typedef struct {
  const char* name;
#if API >= 11
  int (*init)(void** context, uint64_t communicator, logger_t);
#else
  int (*init)(logger_t);
#endif
  int (*devices)(int* ndev);
  int (*getProperties)(int device, properties_t*);
#if API >= 11
  int (*listen)(void* context, int device, void* handle, void** comm);
#else
  int (*listen)(int device, void* handle, void** comm);
#endif
  int (*connect)(void* handles[], int nranks, int rank, void* listening, void** comm);
  int (*reduceSupport)(int type, int op, int* supported);
  int (*regMr)(void* comm, void* data, reg_bytes_t size, int type, void** mhandle);
  int (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  int (*deregMr)(void* comm, void* mhandle);
  int (*iallreduce)(void* comm, void* send, void* recv, count_t count, int type, int op, void* sendMhandle,
                    void* recvMhandle, void** request);
#if API >= 8
  int (*iallgather)(void* comm, void* send, int nparts, sge_t* parts, size_t block, size_t offset, size_t bytes,
                    void* sendMhandle, void** request);
  int (*ireducescatter)(void* comm, int nparts, sge_t* parts, void* recv, size_t block, size_t offset, size_t bytes,
                        int type, int op, void* recvMhandle, void** request);
#endif
  int (*iflush)(void* comm, void* data, int size, void* mhandle, void** request);
  int (*test)(void* request, int* done, int* size);
  int (*closeColl)(void* comm);
  int (*closeListen)(void* comm);
#if API >= 9
  int (*makeVDevice)(int* device, vprops_t*);
#endif
#if API >= 11
  int (*finalize)(void* context);
#endif
} collnet_t;
