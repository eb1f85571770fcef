// Prints the sizes and offsets that a C compiler gives the structures of src/abi.rs, in the order of the
// test that compares them.
#include "collnet.h"
#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define AT(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void) {
  SIZE(properties_t);
  AT(properties_t, name);
  AT(properties_t, pciPath);
  AT(properties_t, guid);
  AT(properties_t, ptrSupport);
  AT(properties_t, speed);
  AT(properties_t, port);
  AT(properties_t, latency);
  AT(properties_t, maxComms);
  AT(properties_t, maxRecvs);
#if API >= 7
  AT(properties_t, netDeviceType);
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
  AT(net_t, name);
  AT(net_t, init);
  AT(net_t, devices);
  AT(net_t, getProperties);
  AT(net_t, listen);
  AT(net_t, connect);
  AT(net_t, accept);
  AT(net_t, regMr);
  AT(net_t, regMrDmaBuf);
  AT(net_t, deregMr);
  AT(net_t, isend);
  AT(net_t, irecv);
  AT(net_t, iflush);
  AT(net_t, test);
  AT(net_t, closeSend);
  AT(net_t, closeRecv);
  AT(net_t, closeListen);
#if API >= 7
  AT(net_t, getDeviceMr);
  AT(net_t, irecvConsumed);
#endif
#if API >= 9
  AT(net_t, makeVDevice);
#endif
#if API >= 11
  AT(net_t, finalize);
  AT(net_t, setNetAttr);
#endif
#if API >= 10
  SIZE(config_t);
  AT(config_t, trafficClass);
  SIZE(qp_description_t);
  AT(qp_description_t, type);
  AT(qp_description_t, qp.device);
  AT(qp_description_t, qp.wr_id);
  AT(qp_description_t, qp.opcode);
  AT(qp_description_t, qp.qpNum);
  AT(qp_description_t, qp.length);
  SIZE(socket_description_t);
  AT(socket_description_t, type);
  AT(socket_description_t, sock.fd);
  AT(socket_description_t, sock.op);
  AT(socket_description_t, sock.length);
#endif
  SIZE(collnet_t);
  AT(collnet_t, name);
  AT(collnet_t, init);
  AT(collnet_t, devices);
  AT(collnet_t, getProperties);
  AT(collnet_t, listen);
  AT(collnet_t, connect);
  AT(collnet_t, reduceSupport);
  AT(collnet_t, regMr);
  AT(collnet_t, regMrDmaBuf);
  AT(collnet_t, deregMr);
  AT(collnet_t, iallreduce);
  AT(collnet_t, iflush);
  AT(collnet_t, test);
  AT(collnet_t, closeColl);
  AT(collnet_t, closeListen);
#if API >= 8
  AT(collnet_t, iallgather);
  AT(collnet_t, ireducescatter);
  SIZE(sge_t);
  AT(sge_t, mhandle);
  AT(sge_t, address);
  AT(sge_t, size);
#endif
#if API >= 9
  AT(collnet_t, makeVDevice);
#endif
#if API >= 11
  AT(collnet_t, finalize);
#endif
  return 0;
}
