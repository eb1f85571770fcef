/* Two queue pairs of one process, on the last device: what libibverbs promises to a C program. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 40000, DEPTH = 16, ACCESS = 15 };

struct end {
    struct ibv_cq *send_cq, *recv_cq;
    struct ibv_comp_channel *channel;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char *bytes;
};

/* The library exports this function, and no header has it. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static struct ibv_context *context;
static struct ibv_pd *pd;

static struct end create(void)
{
    struct end end = {.bytes = malloc(BYTES)};
    end.channel = ibv_create_comp_channel(context);
    end.send_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
    end.recv_cq = ibv_create_cq(context, DEPTH, &pd, end.channel, 0);
    CHECK(end.channel && end.send_cq && end.recv_cq && end.recv_cq->cqe >= DEPTH);
    end.mr = ibv_reg_mr(pd, end.bytes, BYTES, ACCESS);
    CHECK(end.mr && end.mr->addr == end.bytes && end.mr->length == BYTES);
    struct ibv_qp_init_attr init = {
        .send_cq = end.send_cq,
        .recv_cq = end.recv_cq,
        .cap = {DEPTH, DEPTH, 4, 3, 128},
        .qp_type = IBV_QPT_RC,
    };
    end.qp = ibv_create_qp(pd, &init);
    CHECK(end.qp && end.qp->state == IBV_QPS_RESET && end.qp->qp_type == IBV_QPT_RC);
    return end;
}

static void destroy(struct end *end);

static int gid_count(void)
{
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    return port.gid_tbl_len;
}

static int is_ipv4(const union ibv_gid *gid)
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

/* The GID of both ends, which are on one device. */
static int gid_index;

/* A PSN as programs take it from a random number. The device takes the lower 24 bits. */
static const uint32_t wide_psn = 0xabfffff7, psn = 0xfffff7;

static void connect_to(struct end *end, const struct end *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ACCESS};
    int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(end->qp, &attr, init & ~IBV_QP_PORT) == EINVAL);
    CHECK(ibv_modify_qp(end->qp, &attr, init) == 0 && end->qp->state == IBV_QPS_INIT);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer->qp->qp_num;
    attr.rq_psn = wide_psn;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = 1;
    int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(end->qp, &attr, rtr) == EINVAL); /* no GRH */
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.hop_limit = 1;
    CHECK(ibv_query_gid(context, 1, gid_index, &attr.ah_attr.grh.dgid) == 0);
    attr.ah_attr.grh.sgid_index = gid_count();
    CHECK(ibv_modify_qp(end->qp, &attr, rtr) == EINVAL); /* no such GID */
    for (int other = 0; other < gid_count(); other++) {
        union ibv_gid gid;
        CHECK(ibv_query_gid(context, 1, other, &gid) == 0);
        attr.ah_attr.grh.sgid_index = other;
        if (is_ipv4(&gid) != is_ipv4(&attr.ah_attr.grh.dgid))
            CHECK(ibv_modify_qp(end->qp, &attr, rtr) == EINVAL); /* the other IP version */
    }
    attr.ah_attr.grh.sgid_index = gid_index;
    CHECK(ibv_modify_qp(end->qp, &attr, rtr) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.sq_psn = wide_psn;
    attr.max_rd_atomic = 4;
    int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
              IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(end->qp, &attr, rts) == 0);
    struct ibv_qp_attr known;
    struct ibv_qp_init_attr known_init;
    CHECK(ibv_query_qp(end->qp, &known, IBV_QP_STATE, &known_init) == 0);
    CHECK(known.qp_state == IBV_QPS_RTS && known.dest_qp_num == peer->qp->qp_num);
    CHECK(known.ah_attr.grh.sgid_index == gid_index);
    CHECK(known.timeout == 14 && known.path_mtu == IBV_MTU_1024 && known.max_rd_atomic == 4);
    CHECK(known.rq_psn == psn && known.sq_psn == psn);
    CHECK(known_init.cap.max_send_sge == 4 && known_init.recv_cq == end->recv_cq);
}

/* The attributes of rdma-core before version 13 end in front of the rate limit. */
static void query_of_an_old_program(const struct end *end)
{
    enum { OLD_BYTES = 136 };
    struct {
        struct ibv_qp_attr attr;
        unsigned char behind[8];
    } place;
    struct ibv_qp_init_attr init;
    memset(&place, 0xa5, sizeof place);
    CHECK(ibv_query_qp(end->qp, &place.attr, IBV_QP_STATE, &init) == 0);
    CHECK(place.attr.qp_state == IBV_QPS_RTS && place.attr.timeout == 14);
    for (unsigned char *at = (unsigned char *)&place + OLD_BYTES; at < place.behind + 8; at++)
        CHECK(*at == 0xa5);
    CHECK(ibv_query_qp(end->qp, &place.attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT, &init) == 0);
    CHECK(place.attr.rate_limit == 0 && place.behind[0] == 0xa5);
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(n == 1);
    return wc;
}

/* Cuts a range of a region into pieces of different lengths, one of them empty. */
static void cut(const struct ibv_mr *mr, unsigned length, struct ibv_sge *list, int count)
{
    unsigned at = 0;
    for (int i = 0; i < count; i++) {
        unsigned left = length - at, some = length / 5 + i < left ? length / 5 + i : left;
        unsigned piece = i == 1 && count > 3 ? 0 : i + 1 == count ? left : some;
        list[i] = (struct ibv_sge){(uintptr_t)mr->addr + at, piece, mr->lkey};
        at += piece;
    }
}

static void fill(struct end *end, int seed)
{
    for (int i = 0; i < BYTES; i++)
        end->bytes[i] = (unsigned char)(i * 31 + seed + i / 256);
}

/* A message of several buffers at both ends, by each operation. */
static void transfer(struct end *a, struct end *b, enum ibv_wr_opcode opcode, unsigned length,
                     int sends, unsigned flags)
{
    struct ibv_sge from[4], to[3];
    struct ibv_send_wr wr = {.wr_id = 5, .opcode = opcode, .send_flags = flags | IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad_send;
    struct ibv_recv_wr *bad_recv;
    int is_send = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
    int has_imm = opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    int is_read = opcode == IBV_WR_RDMA_READ;
    fill(a, opcode + length);
    fill(b, opcode + length + 1);
    unsigned char *expected = malloc(BYTES);
    memcpy(expected, is_read ? b->bytes : a->bytes, BYTES);
    cut(a->mr, length, from, sends);
    cut(b->mr, length, to, 3);
    if (is_send || has_imm) {
        struct ibv_recv_wr recv = {.wr_id = 6, .sg_list = to, .num_sge = is_send ? 3 : 0};
        CHECK(ibv_req_notify_cq(b->recv_cq, 0) == 0);
        CHECK(ibv_post_recv(b->qp, &recv, &bad_recv) == 0);
    }
    wr.sg_list = from;
    wr.num_sge = sends;
    wr.imm_data = 0x01020304;
    wr.wr.rdma.remote_addr = (uintptr_t)b->bytes;
    wr.wr.rdma.rkey = b->mr->rkey;
    CHECK(ibv_post_send(a->qp, &wr, &bad_send) == 0);
    struct ibv_wc wc;
    if (is_send || has_imm) {
        struct ibv_cq *raised;
        void *owner;
        CHECK(ibv_get_cq_event(b->channel, &raised, &owner) == 0);
        CHECK(raised == b->recv_cq && owner == &pd);
        ibv_ack_cq_events(raised, 1);
        wc = completion(b->recv_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 6 && wc.byte_len == length);
        CHECK(wc.opcode == (is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM));
        CHECK(!has_imm || (wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == 0x01020304));
        CHECK(wc.qp_num == b->qp->qp_num);
    }
    wc = completion(a->send_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.qp_num == a->qp->qp_num);
    CHECK(memcmp(is_read ? a->bytes : b->bytes, expected, length) == 0);
    free(expected);
}

static void transfers(struct end *a, struct end *b)
{
    unsigned lengths[] = {100, 1024, 5000, 39999};
    for (int i = 0; i < 4; i++)
        for (int opcode = IBV_WR_RDMA_WRITE; opcode <= IBV_WR_RDMA_READ; opcode++)
            for (int sends = 1; sends <= 4; sends++) {
                transfer(a, b, opcode, lengths[i], sends, IBV_SEND_FENCE);
                if (lengths[i] <= 128 && opcode != IBV_WR_RDMA_READ)
                    transfer(b, a, opcode, lengths[i], sends, IBV_SEND_INLINE);
            }
}

/* Atomics change a word of the peer and return what was there. */
static void atomics(struct end *a, struct end *b)
{
    struct ibv_sge result = {(uintptr_t)a->bytes, 8, a->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1}, *bad;
    uint64_t *ours = (uint64_t *)a->bytes, *theirs = (uint64_t *)(b->bytes + 64);
    wr.sg_list = &result;
    wr.wr.atomic.remote_addr = (uintptr_t)theirs;
    wr.wr.atomic.rkey = b->mr->rkey;
    *theirs = 40;
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.compare_add = 2;
    CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
    struct ibv_wc wc = completion(a->send_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD && wc.byte_len == 8);
    CHECK(*ours == 40 && *theirs == 42);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    for (uint64_t compare = 41; compare <= 42; compare++) {
        wr.wr.atomic.compare_add = compare;
        wr.wr.atomic.swap = 7;
        CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
        wc = completion(a->send_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_COMP_SWAP);
        CHECK(*ours == 42 && *theirs == (compare == 42 ? 7 : 42));
    }
    wr.wr.atomic.remote_addr += 4;
    CHECK(ibv_post_send(a->qp, &wr, &bad) == EINVAL && bad == &wr);
}

/* Receives of a shared queue, and the asynchronous events of the queue and of its queue pair. */
static void shared_receives(void)
{
    struct end a = create(), b = create();
    struct ibv_srq_init_attr init = {.attr = {8, 2, 0}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    CHECK(srq && srq->pd == pd && ibv_destroy_qp(b.qp) == 0);
    struct ibv_qp_init_attr shared = {
        .send_cq = b.send_cq,
        .recv_cq = b.recv_cq,
        .srq = srq,
        .cap = {DEPTH, 0, 4, 0, 128},
        .qp_type = IBV_QPT_RC,
    };
    b.qp = ibv_create_qp(pd, &shared);
    CHECK(b.qp && b.qp->srq == srq && ibv_destroy_srq(srq) == EBUSY);
    connect_to(&a, &b);
    connect_to(&b, &a);
    struct ibv_sge list[2], from = {(uintptr_t)a.bytes, 100, a.mr->lkey};
    cut(b.mr, 100, list, 2);
    struct ibv_recv_wr recv = {.sg_list = list, .num_sge = 2}, *bad_recv;
    CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
    for (recv.wr_id = 0; recv.wr_id < 4; recv.wr_id++)
        CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
    struct ibv_srq_attr attr = {.srq_limit = 9};
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
    attr.srq_limit = 3;
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
    CHECK(ibv_query_srq(srq, &attr) == 0 && attr.max_wr == 8 && attr.srq_limit == 3);

    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.sg_list = &from;
    wr.num_sge = 1;
    for (unsigned number = 0; number < 2; number++) {
        fill(&a, number);
        fill(&b, number + 1);
        CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
        struct ibv_wc wc = completion(b.recv_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == number && wc.byte_len == 100);
        CHECK(completion(a.send_cq).status == IBV_WC_SUCCESS);
        CHECK(memcmp(a.bytes, b.bytes, 100) == 0);
    }
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(context, &event) == 0 && event.element.srq == srq);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
    ibv_ack_async_event(&event);
    CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);

    /* A key that the peer does not know ends the connection. */
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = (uintptr_t)b.bytes;
    wr.wr.rdma.rkey = b.mr->rkey ^ 1;
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
    CHECK(completion(a.send_cq).status == IBV_WC_REM_ACCESS_ERR);
    enum ibv_event_type expected[] = {IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_LAST_WQE_REACHED};
    for (int number = 0; number < 2; number++) {
        CHECK(ibv_get_async_event(context, &event) == 0 && event.element.qp == b.qp);
        CHECK(event.event_type == expected[number]);
        ibv_ack_async_event(&event);
    }
    destroy(&a);
    destroy(&b);
    CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_srq(srq) == EINVAL);
}

/* Each operation, built and read by functions, two in a batch. */
static void built_and_read(void)
{
    struct ibv_cq_init_attr_ex cq_init = {.cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_init);
    CHECK(cq && cq->cqe >= DEPTH);
    cq_init.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    CHECK(!ibv_create_cq_ex(context, &cq_init) && errno == EOPNOTSUPP);
    struct ibv_qp_init_attr_ex init = {.send_cq = ibv_cq_ex_to_cq(cq), .pd = pd};
    init.recv_cq = init.send_cq;
    init.cap = (struct ibv_qp_cap){4, 4, 4, 3, 128};
    init.qp_type = IBV_QPT_RC;
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_TSO;
    CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
    init.send_ops_flags = (1 << 7) - 1;
    struct end a = {.qp = ibv_create_qp_ex(context, &init), .bytes = malloc(BYTES)};
    a.send_cq = a.recv_cq = init.send_cq;
    a.mr = ibv_reg_mr(pd, a.bytes, BYTES, ACCESS);
    CHECK(a.qp && a.mr);
    struct end b = create();
    CHECK(!ibv_qp_to_qp_ex(b.qp));
    connect_to(&a, &b);
    connect_to(&b, &a);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
    CHECK(qp);
    struct ibv_poll_cq_attr attr = {0};
    uintptr_t from = (uintptr_t)a.bytes, to = (uintptr_t)b.bytes;
    uint32_t lkey = a.mr->lkey, rkey = b.mr->rkey;
    for (int operation = 0; operation < 7; operation++) {
        fill(&a, operation);
        memset(b.bytes, 0, BYTES);
        struct ibv_sge sge = {to, 200, b.mr->lkey};
        struct ibv_recv_wr recv = {.wr_id = 6, .sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(ibv_post_recv(b.qp, &recv, &bad) == 0);
        CHECK(ibv_start_poll(cq, &attr) == ENOENT);
        ibv_wr_start(qp);
        qp->wr_flags = IBV_SEND_SIGNALED;
        qp->wr_id = 100 + operation;
        int by_operation[] = {IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE,
                              IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP};
        switch (operation) {
        case 0: ibv_wr_send(qp); break;
        case 1: ibv_wr_send_imm(qp, 7); break;
        case 2: ibv_wr_rdma_write(qp, rkey, to); break;
        case 3: ibv_wr_rdma_write_imm(qp, rkey, to, 7); break;
        case 4: ibv_wr_rdma_read(qp, rkey, to); break;
        case 5: ibv_wr_atomic_fetch_add(qp, rkey, to, 5); break;
        case 6: ibv_wr_atomic_cmp_swp(qp, rkey, to, 0, 9); break;
        }
        if (operation < 3) {
            struct ibv_data_buf pieces[2] = {{a.bytes, 60}, {a.bytes + 60, 40}};
            ibv_wr_set_inline_data_list(qp, 2, pieces);
        } else if (operation == 4) {
            struct ibv_sge list[2] = {{from, 60, lkey}, {from + 60, 40, lkey}};
            ibv_wr_set_sge_list(qp, 2, list);
        } else {
            ibv_wr_set_sge(qp, lkey, from, operation == 3 ? 100 : 8);
        }
        qp->wr_id++;
        ibv_wr_rdma_write(qp, rkey, to + 1000);
        ibv_wr_set_inline_data(qp, "second", 6);
        CHECK(ibv_wr_complete(qp) == 0);
        for (int number = 0; number < 2; number++) {
            while (number == 0 && ibv_start_poll(cq, &attr) == ENOENT)
                ;
            while (number == 1 && ibv_next_poll(cq) == ENOENT)
                ;
            CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == 100 + operation + number);
            int opcode = number ? IBV_WC_RDMA_WRITE : by_operation[operation];
            CHECK(ibv_wc_read_opcode(cq) == opcode && ibv_wc_read_qp_num(cq) == a.qp->qp_num);
            CHECK(ibv_wc_read_vendor_err(cq) == 0);
        }
        CHECK(ibv_next_poll(cq) == ENOENT);
        ibv_end_poll(cq);
        CHECK(memcmp(b.bytes + 1000, "second", 6) == 0);
        CHECK(operation > 3 || memcmp(a.bytes, b.bytes, 100) == 0);
        CHECK(operation != 4 || a.bytes[0] + a.bytes[99] == 0);
        CHECK(operation < 5 || b.bytes[0] == (operation == 5 ? 5 : 9));
        if (operation < 2 || operation == 3)
            CHECK(completion(b.recv_cq).byte_len == 100);
    }
    /* A batch that is too long, one with an error and one that is given up post nothing. The device finds
       the error of the last one, an atomic at an odd address. */
    for (int batch = 0; batch < 4; batch++) {
        ibv_wr_start(qp);
        for (int number = 0; number < (batch == 0 ? 5 : 2); number++) {
            ibv_wr_rdma_write(qp, rkey, to);
            static char bytes[129];
            ibv_wr_set_inline_data(qp, bytes, batch == 1 && number ? 129 : 8);
        }
        if (batch == 3) {
            ibv_wr_atomic_fetch_add(qp, rkey, to + 1, 5);
            ibv_wr_set_sge(qp, lkey, from, 8);
        }
        if (batch == 2)
            ibv_wr_abort(qp);
        else
            CHECK(ibv_wr_complete(qp) == (batch ? EINVAL : ENOMEM));
    }
    /* A completion of this request shows that none of them was posted. */
    ibv_wr_start(qp);
    qp->wr_id = 7;
    ibv_wr_rdma_write(qp, rkey, to);
    ibv_wr_set_inline_data(qp, "last", 4);
    CHECK(ibv_wr_complete(qp) == 0);
    while (ibv_start_poll(cq, &attr) == ENOENT)
        ;
    CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == 7 && ibv_next_poll(cq) == ENOENT);
    ibv_end_poll(cq);
    CHECK(ibv_destroy_qp(a.qp) == 0);
    destroy(&b);
    CHECK(ibv_destroy_cq(a.send_cq) == 0 && ibv_dereg_mr(a.mr) == 0);
    free(a.bytes);
}

static struct ibv_qp *create_datagrams(struct end *end)
{
    struct ibv_qp_init_attr init = {
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .cap = {DEPTH, DEPTH, 4, 3, 128},
        .qp_type = IBV_QPT_UD,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp && qp->qp_type == IBV_QPT_UD);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    CHECK(ibv_modify_qp(qp, &attr, mask & ~IBV_QP_QKEY) == EINVAL);
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = wide_psn;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    CHECK(ibv_query_qp(qp, &attr, IBV_QP_SQ_PSN, &init) == 0 && attr.sq_psn == psn);
    return qp;
}

/* A datagram, and an answer to the address that its header tells. */
static void datagrams(void)
{
    struct end a = create(), b = create();
    struct ibv_qp *from = create_datagrams(&a), *to = create_datagrams(&b);
    struct ibv_ah_attr address = {.port_num = 1};
    CHECK(!ibv_create_ah(pd, &address) && errno == EINVAL); /* no GRH */
    address.is_global = 1;
    CHECK(!ibv_create_ah(pd, &address) && errno == EINVAL); /* no address of a host */
    CHECK(ibv_query_gid(context, 1, gid_index, &address.grh.dgid) == 0);
    address.grh.sgid_index = gid_count();
    CHECK(!ibv_create_ah(pd, &address) && errno == EINVAL); /* no such GID */
    address.grh.sgid_index = gid_index;
    struct ibv_ah *ah = ibv_create_ah(pd, &address);
    CHECK(ah && ah->context == context && ah->pd == pd);
    for (unsigned length = 0; length <= 1000; length += 500) {
        struct ibv_sge sends[4], recvs[3];
        fill(&a, length);
        memset(b.bytes, 0, BYTES);
        cut(a.mr, length, sends, 4);
        cut(b.mr, 40 + length, recvs, 3);
        struct ibv_recv_wr recv = {.wr_id = 6, .sg_list = recvs, .num_sge = 3}, *bad_recv;
        CHECK(ibv_post_recv(to, &recv, &bad_recv) == 0);
        struct ibv_send_wr wr = {.wr_id = 5, .opcode = IBV_WR_SEND_WITH_IMM}, *bad;
        wr.sg_list = sends;
        wr.num_sge = 4;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.imm_data = 7;
        CHECK(ibv_post_send(from, &wr, &bad) == EINVAL && bad == &wr); /* no address handle */
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = to->qp_num;
        wr.wr.ud.remote_qkey = 0x1234;
        CHECK(ibv_post_send(from, &wr, &bad) == 0);
        struct ibv_wc wc = completion(b.recv_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 6 && wc.byte_len == 40 + length);
        CHECK(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == 7);
        CHECK(wc.src_qp == from->qp_num && wc.qp_num == to->qp_num);
        CHECK(memcmp(b.bytes + 40, a.bytes, length) == 0);
        CHECK(completion(a.send_cq).status == IBV_WC_SUCCESS);

        struct ibv_grh *grh = (struct ibv_grh *)b.bytes;
        struct ibv_ah_attr sender;
        CHECK(ibv_init_ah_from_wc(context, 1, &wc, grh, &sender) == 0 && sender.is_global == 1);
        CHECK(memcmp(&sender.grh.dgid, &address.grh.dgid, 16) == 0);
        CHECK(sender.grh.sgid_index == gid_index);
        struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
        CHECK(back);
        recv.sg_list = &(struct ibv_sge){(uintptr_t)a.bytes, 60, a.mr->lkey};
        recv.num_sge = 1;
        CHECK(ibv_post_recv(from, &recv, &bad_recv) == 0);
        struct ibv_sge sge = {(uintptr_t) "answer", 6, 0};
        struct ibv_send_wr answer = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};
        answer.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
        answer.wr.ud.ah = back;
        answer.wr.ud.remote_qpn = wc.src_qp;
        answer.wr.ud.remote_qkey = 0x80000000; /* the sender's own */
        CHECK(ibv_post_send(to, &answer, &bad) == 0);
        wc = completion(a.recv_cq);
        CHECK(wc.byte_len == 46 && memcmp(a.bytes + 40, "answer", 6) == 0);
        CHECK(completion(b.send_cq).opcode == IBV_WC_SEND);
        CHECK(ibv_destroy_ah(back) == 0 && ibv_destroy_ah(back) == EINVAL);
    }
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    struct ibv_sge whole = {(uintptr_t)a.bytes, (128 << port.active_mtu) + 1, a.mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &whole, .num_sge = 1}, *bad;
    wr.wr.ud.ah = ah;
    CHECK(ibv_post_send(from, &wr, &bad) == EINVAL); /* longer than a packet */
    wr.opcode = IBV_WR_RDMA_READ;
    CHECK(ibv_post_send(from, &wr, &bad) == EINVAL);
    CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
    CHECK(ibv_destroy_ah(ah) == 0);
    destroy(&a);
    destroy(&b);
}

/* A chain that fails in its middle names the request at fault, and the others are posted. */
static void bad_requests(struct end *a, struct end *b)
{
    struct ibv_sge list[5];
    struct ibv_send_wr *bad;
    cut(a->mr, 100, list, 5);
    struct ibv_send_wr last = {.wr_id = 3, .opcode = IBV_WR_RDMA_WRITE};
    struct ibv_send_wr many = {.wr_id = 2, .opcode = IBV_WR_RDMA_WRITE, .next = &last};
    many.sg_list = list;
    many.num_sge = 5;
    struct ibv_send_wr first = {.wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .next = &many};
    first.send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(a->qp, &first, &bad) == EINVAL && bad == &many);
    CHECK(completion(a->send_cq).wr_id == 1);
    struct ibv_send_wr tso = {.opcode = IBV_WR_TSO};
    CHECK(ibv_post_send(a->qp, &tso, &bad) == EOPNOTSUPP && bad == &tso);

    /* Memory that is not registered fails the request, and then the connection. */
    list[0].lkey ^= 1;
    struct ibv_send_wr wrong = {.wr_id = 4, .opcode = IBV_WR_SEND, .sg_list = list, .num_sge = 2};
    struct ibv_recv_wr recv = {.wr_id = 8}, *bad_recv;
    CHECK(ibv_post_recv(a->qp, &recv, &bad_recv) == 0);
    CHECK(ibv_post_send(a->qp, &wrong, &bad) == 0);
    struct ibv_wc wc = completion(a->send_cq);
    CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.wr_id == 4);
    wc = completion(a->recv_cq);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 8);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(b->qp, &attr, IBV_QP_STATE) == 0);
}

/* RESET forgets the peer, and leads to INIT alone. */
static void is_reset(struct end *end)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN, &init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RESET && attr.dest_qp_num == 0 && attr.timeout == 0);
    CHECK(!attr.ah_attr.is_global && attr.ah_attr.grh.dgid.global.interface_id == 0);
    CHECK(attr.qp_access_flags == 0 && attr.cap.max_send_wr == DEPTH);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE) == EINVAL);
    CHECK(end->qp->state == IBV_QPS_RESET);
}

/* Connects both ends again after an error. */
static void reconnect(struct end *a, struct end *b)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(a->qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(b->qp, &attr, IBV_QP_STATE) == 0);
    connect_to(a, b);
    connect_to(b, a);
}

/* A WRITE of 8 bytes with a key; returns its status. */
static enum ibv_wc_status write_with(struct end *a, uint32_t rkey, void *to)
{
    struct ibv_sge sge = {(uintptr_t)a->bytes, 8, a->mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = (uintptr_t)to;
    wr.wr.rdma.rkey = rkey;
    CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
    return completion(a->send_cq).status;
}

/* Posts a bind of a window of type 2 to 100 bytes from the 64th on; returns its status. */
static enum ibv_wc_status bind_type_2(struct end *end, struct ibv_mw *mw, uint32_t rkey,
                                      struct ibv_mr *mr, int access)
{
    struct ibv_send_wr wr = {.wr_id = 8, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)end->bytes + 64, 100, access};
    CHECK(ibv_post_send(end->qp, &wr, &bad) == 0);
    struct ibv_wc wc = completion(end->send_cq);
    CHECK(wc.wr_id == 8 && (wc.status || wc.opcode == IBV_WC_BIND_MW));
    return wc.status;
}

/* Memory windows: `b` gives `a` a part of its region and takes it back. */
static void windows(void)
{
    struct end a = create(), b = create(), c = create();
    connect_to(&a, &b);
    connect_to(&b, &a);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
    struct ibv_mr *mr = ibv_reg_mr(pd, b.bytes, BYTES, access);
    struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    CHECK(mr && one && two && one->pd == pd && two->type == IBV_MW_TYPE_2);
    CHECK(one->rkey >> 8 != two->rkey >> 8);
    unsigned char *shown = b.bytes + 64;

    /* Type 1: each bind gives a new key, and ends the old one. */
    struct ibv_mw_bind bind = {.wr_id = 7, .send_flags = IBV_SEND_SIGNALED};
    bind.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)shown, 100, IBV_ACCESS_REMOTE_WRITE};
    uint32_t first = one->rkey;
    CHECK(ibv_bind_mw(b.qp, two, &bind) == EINVAL);
    CHECK(ibv_bind_mw(b.qp, one, &bind) == 0 && one->rkey != first);
    struct ibv_wc wc = completion(b.send_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 7);
    CHECK(ibv_dereg_mr(mr) == EBUSY);
    CHECK(write_with(&a, one->rkey, shown + 92) == IBV_WC_SUCCESS);
    CHECK(memcmp(shown + 92, a.bytes, 8) == 0);
    void *outside[] = {shown + 93, shown - 1};
    for (int i = 0; i < 2; i++) {
        CHECK(write_with(&a, one->rkey, outside[i]) == IBV_WC_REM_ACCESS_ERR);
        reconnect(&a, &b);
    }
    uint32_t old = one->rkey;
    CHECK(ibv_bind_mw(b.qp, one, &bind) == 0 && one->rkey != old);
    CHECK(completion(b.send_cq).status == IBV_WC_SUCCESS);
    CHECK(write_with(&a, one->rkey, shown) == IBV_WC_SUCCESS);
    CHECK(write_with(&a, old, shown) == IBV_WC_REM_ACCESS_ERR);
    reconnect(&a, &b);
    bind.bind_info.length = 0;
    CHECK(ibv_bind_mw(b.qp, one, &bind) == 0);
    CHECK(completion(b.send_cq).status == IBV_WC_SUCCESS);
    CHECK(write_with(&a, one->rkey, shown) == IBV_WC_REM_ACCESS_ERR);
    reconnect(&a, &b);

    /* Type 2: the program chooses the key, and only the queue pair of the bind serves it. */
    uint32_t rkey = ibv_inc_rkey(two->rkey);
    CHECK(bind_type_2(&b, two, rkey, mr, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS);
    CHECK(write_with(&a, rkey, shown) == IBV_WC_SUCCESS);
    CHECK(bind_type_2(&b, two, rkey + 1, mr, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_MW_BIND_ERR);
    reconnect(&a, &b); /* it was bound */
    CHECK(write_with(&a, rkey, shown) == IBV_WC_SUCCESS);
    struct ibv_send_wr wr = {.wr_id = 9, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    CHECK(ibv_post_send(b.qp, &wr, &bad) == 0);
    wc = completion(b.send_cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV && wc.wr_id == 9);
    CHECK(write_with(&a, rkey, shown) == IBV_WC_REM_ACCESS_ERR);
    reconnect(&a, &b);
    CHECK(ibv_post_send(b.qp, &wr, &bad) == 0);
    CHECK(completion(b.send_cq).status == IBV_WC_LOC_QP_OP_ERR); /* it is invalid already */
    reconnect(&a, &b);
    CHECK(bind_type_2(&b, two, rkey, b.mr, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_MW_BIND_ERR);
    reconnect(&a, &b); /* a region without the right to bind */
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw.mw = two;
    wr.bind_mw.rkey = rkey ^ 0x100;
    CHECK(ibv_post_send(b.qp, &wr, &bad) == EINVAL); /* the key of another window */

    /* The peer ends a bind together with a message of several packets. */
    for (int round = 0; round < 3; round++) {
        CHECK(bind_type_2(&b, two, rkey, mr, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS);
        CHECK(write_with(&a, rkey, shown) == IBV_WC_SUCCESS);
        struct ibv_sge from = {(uintptr_t)a.bytes, 2500 * round, a.mr->lkey};
        struct ibv_sge to = {(uintptr_t)b.bytes, BYTES, b.mr->lkey};
        struct ibv_recv_wr recv = {.wr_id = 6, .sg_list = &to, .num_sge = 1}, *bad_recv;
        CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == 0);
        struct ibv_send_wr send = {.opcode = IBV_WR_SEND_WITH_INV, .sg_list = &from, .num_sge = 1};
        send.send_flags = IBV_SEND_SIGNALED;
        send.invalidate_rkey = rkey;
        fill(&a, round);
        CHECK(ibv_post_send(a.qp, &send, &bad) == 0);
        wc = completion(b.recv_cq);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
        CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == rkey);
        CHECK(wc.byte_len == from.length && memcmp(a.bytes, b.bytes, from.length) == 0);
        CHECK(completion(a.send_cq).opcode == IBV_WC_SEND);
        if (round < 2)
            continue;
        /* The key is invalid now, so nobody can invalidate it. */
        CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == 0);
        CHECK(ibv_post_send(a.qp, &send, &bad) == 0);
        CHECK(completion(a.send_cq).status == IBV_WC_REM_INV_REQ_ERR);
        CHECK(completion(b.recv_cq).status == IBV_WC_REM_INV_REQ_ERR);
        reconnect(&a, &b);
    }

    /* Another queue pair of the domain does not serve the window, and its own end unbinds it. */
    CHECK(bind_type_2(&b, two, rkey, mr, IBV_ACCESS_REMOTE_WRITE) == IBV_WC_SUCCESS);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE) == 0);
    connect_to(&a, &c);
    connect_to(&c, &a);
    CHECK(write_with(&a, rkey, shown) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(mr) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
    destroy(&b);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0);
    destroy(&a);
    destroy(&c);
}

/* A region gets other rights, another domain and other memory, and keeps its keys. */
static void changed_regions(void)
{
    struct end a = create(), b = create();
    connect_to(&a, &b);
    connect_to(&b, &a);
    struct ibv_pd *other = ibv_alloc_pd(context);
    uint32_t rkey = b.mr->rkey;
    fill(&a, 1);
    fill(&b, 2);
    CHECK(write_with(&a, rkey, b.bytes) == IBV_WC_SUCCESS);
    CHECK(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
    CHECK(write_with(&a, rkey, b.bytes) == IBV_WC_REM_ACCESS_ERR);
    reconnect(&a, &b);
    CHECK(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD, other, NULL, 0,
                       ACCESS) == 0 &&
          b.mr->pd == other);
    CHECK(write_with(&a, rkey, b.bytes) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dealloc_pd(other) == EBUSY);
    reconnect(&a, &b);
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION, pd, page, 100,
                       0) == 0);
    CHECK(b.mr->pd == pd && b.mr->addr == page && b.mr->length == 100 && b.mr->rkey == rkey);
    CHECK(ibv_dealloc_pd(other) == 0);
    CHECK(write_with(&a, rkey, page + 92) == IBV_WC_SUCCESS && memcmp(page + 92, a.bytes, 8) == 0);
    CHECK(write_with(&a, rkey, page + 93) == IBV_WC_REM_ACCESS_ERR);
    reconnect(&a, &b);

    /* Refusals change nothing. */
    CHECK(mprotect(page, 4096, PROT_READ) == 0);
    struct {
        int flags;
        void *addr;
        size_t length;
        int access, error;
    } wrong[] = {
        {0, NULL, 0, 0, EINVAL},
        {8, NULL, 0, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_PD, NULL, 0, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_TRANSLATION, b.bytes, 0, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_TRANSLATION, NULL, 8, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_TRANSLATION, page, 8, 0, EFAULT},
        {IBV_REREG_MR_CHANGE_TRANSLATION, b.bytes, SIZE_MAX, 0, EINVAL},
        {IBV_REREG_MR_CHANGE_ACCESS, NULL, 0, IBV_ACCESS_REMOTE_WRITE, EINVAL},
        {IBV_REREG_MR_CHANGE_ACCESS, NULL, 0, IBV_ACCESS_ON_DEMAND, EOPNOTSUPP},
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        errno = 0;
        CHECK(ibv_rereg_mr(b.mr, wrong[i].flags, NULL, wrong[i].addr, wrong[i].length,
                           wrong[i].access) == IBV_REREG_MR_ERR_INPUT);
        CHECK(errno == wrong[i].error && b.mr->addr == page && b.mr->length == 100);
    }
    CHECK(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
    CHECK(write_with(&a, rkey, page) == IBV_WC_SUCCESS);
    destroy(&a);
    destroy(&b);
    munmap(page, 4096);
    errno = 0;
    CHECK(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(errno == EINVAL);
}

/* In SQD the queue pair finishes what it has begun and tells so, and takes other attributes. */
static void drained_queues(void)
{
    struct end a = create(), b = create();
    connect_to(&a, &b);
    connect_to(&b, &a);
    struct ibv_sge sge = {(uintptr_t)a.bytes, BYTES, a.mr->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1}, *bad;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = (uintptr_t)b.bytes;
    wr.wr.rdma.rkey = b.mr->rkey;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 5; i++)
            CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
        attr.qp_state = IBV_QPS_SQD;
        CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
        struct ibv_async_event event;
        CHECK(ibv_get_async_event(context, &event) == 0);
        CHECK(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == a.qp);
        ibv_ack_async_event(&event);
        struct ibv_wc wc[10];
        int done = ibv_poll_cq(a.send_cq, 5, wc);
        usleep(2000);
        CHECK(done >= 0 && ibv_poll_cq(a.send_cq, 5, wc + done) == 0);
        attr.qp_state = IBV_QPS_RTS;
        CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
        for (; done < 5; done++)
            CHECK(completion(a.send_cq).status == IBV_WC_SUCCESS);
    }

    attr.timeout = 9;
    attr.retry_cnt = 3;
    attr.max_rd_atomic = 2;
    attr.max_dest_rd_atomic = 1;
    int changes = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(a.qp, &attr, changes) == EINVAL); /* the state is RTS */
    attr.qp_state = IBV_QPS_SQD;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | changes) == EINVAL);
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(a.qp, &attr, changes | IBV_QP_MAX_DEST_RD_ATOMIC) == 0);
    attr.retry_cnt = 8;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_RETRY_CNT) == EINVAL);
    struct ibv_qp_attr known;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(a.qp, &known, IBV_QP_STATE, &init) == 0);
    CHECK(known.qp_state == IBV_QPS_SQD && known.timeout == 9 && known.retry_cnt == 3);
    CHECK(!known.sq_draining);
    CHECK(known.max_rd_atomic == 2 && known.max_dest_rd_atomic == 1 && known.rnr_retry == 7);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    transfers(&a, &b);

    /* The queue pair gives up a peer that is gone. */
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE) == 0);
    CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
    attr.qp_state = IBV_QPS_SQD;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_query_qp(a.qp, &known, IBV_QP_STATE, &init) == 0);
    CHECK(known.qp_state == IBV_QPS_SQD && known.sq_draining);
    CHECK(completion(a.send_cq).status == IBV_WC_RETRY_EXC_ERR);
    destroy(&a);
    destroy(&b);
}

static void refusals(struct end *end)
{
    errno = 0;
    struct ibv_srq_init_attr srq = {.attr = {0, 1, 0}};
    CHECK(!ibv_create_srq(pd, &srq) && errno == EINVAL);
    errno = 0;
    struct ibv_qp_init_attr xrc = {.send_cq = end->send_cq, .recv_cq = end->recv_cq};
    xrc.qp_type = IBV_QPT_XRC_SEND;
    CHECK(!ibv_create_qp(pd, &xrc) && errno == EOPNOTSUPP);
    struct ibv_qp_init_attr deep = {.send_cq = end->send_cq, .recv_cq = end->recv_cq};
    deep.qp_type = IBV_QPT_RC;
    deep.cap.max_send_wr = 1 << 20;
    CHECK(!ibv_create_qp(pd, &deep) && errno == EINVAL);
    struct ibv_qp_init_attr_ex extended = {.send_cq = end->send_cq, .recv_cq = end->recv_cq};
    extended.qp_type = IBV_QPT_RC;
    extended.pd = pd;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    struct ibv_qp *qp = ibv_create_qp_ex(context, &extended);
    CHECK(qp && ibv_destroy_qp(qp) == 0);
    extended.create_flags = IBV_QP_CREATE_SCATTER_FCS;
    CHECK(!ibv_create_qp_ex(context, &extended) && errno == EOPNOTSUPP);
    CHECK(!ibv_alloc_mw(pd, 3) && errno == EINVAL);
    CHECK(!ibv_alloc_td(context, NULL) && errno == EOPNOTSUPP);
    CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
    CHECK(!ibv_create_cq(context, 1, NULL, NULL, 1) && errno == EINVAL);

    /* A file that does not fit, and rates that are no multiple of 2.5 Gbit/s. */
    char text[64];
    int len = ibv_read_sysfs_file("/proc/self", "comm", text, sizeof text);
    CHECK(len > 0 && text[len] == 0 && text[len - 1] != '\n');
    CHECK(ibv_read_sysfs_file("/proc/self", "comm", text, len) == -1);
    CHECK(ibv_read_sysfs_file("/proc/self", "comm", text, len + 1) == len);
    CHECK(ibv_rate_to_mult(15) == -1 && ibv_rate_to_mult(IBV_RATE_28_GBPS) == 11);
    CHECK(mult_to_ibv_rate(10) == 0 && mult_to_ibv_rate(11) == IBV_RATE_28_GBPS);

    /* Memory without the rights. */
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(!ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    struct ibv_mr *readable = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_REMOTE_READ);
    CHECK(readable && ibv_dereg_mr(readable) == 0);
    munmap(page, 4096);
    CHECK(!ibv_reg_mr(pd, page, 4096, 0) && errno == EFAULT);
    CHECK(!ibv_reg_mr(pd, NULL, 8, 0) && errno == EINVAL);
    struct ibv_mr *empty[2] = {ibv_reg_mr(pd, NULL, 0, ACCESS), ibv_reg_mr(pd, end->bytes + 1, 0, 0)};
    for (int i = 0; i < 2; i++)
        CHECK(empty[i] && empty[i]->length == 0 && ibv_dereg_mr(empty[i]) == 0);
    CHECK(!ibv_reg_mr(pd, end->bytes, 8, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    CHECK(!ibv_reg_mr(pd, end->bytes, 8, IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);

    /* Nothing is there to take. */
    struct ibv_cq *cq;
    void *owner;
    fcntl(end->channel->fd, F_SETFL, O_NONBLOCK);
    CHECK(ibv_get_cq_event(end->channel, &cq, &owner) == -1 && errno == EAGAIN);
    struct pollfd events = {.fd = context->async_fd, .events = POLLIN};
    CHECK(poll(&events, 1, 0) == 0);
}

static void queries(void)
{
    struct ibv_device_attr_ex attr;
    struct ibv_port_attr port;
    struct ibv_gid_entry entries[16], entry;
    __be16 pkey;
    CHECK(ibv_query_device_ex(context, NULL, &attr) == 0 && attr.phys_port_cnt_ex == 1);
    CHECK(attr.orig_attr.max_sge >= 4 && attr.orig_attr.phys_port_cnt == 1);
    CHECK(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
    CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len >= 1);
    CHECK(port.flags & IBV_QPF_GRH_REQUIRED);
    CHECK(ibv_query_port(context, 2, &port) == EINVAL);
    int count = port.gid_tbl_len;
    CHECK(ibv_query_gid_table(context, entries, 16, 0) == count);
    CHECK(ibv_query_gid_table(context, entries, count - 1, 0) == -EINVAL);
    for (int index = 0; index < count; index++) {
        union ibv_gid gid;
        CHECK(ibv_query_gid_ex(context, 1, index, &entry, 0) == 0);
        CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex > 0);
        CHECK(entry.gid_index == (unsigned)index);
        CHECK(memcmp(&entry, &entries[index], sizeof entry) == 0);
        CHECK(ibv_query_gid(context, 1, index, &gid) == 0 && !memcmp(&gid, &entry.gid, 16));
    }
    CHECK(ibv_query_gid_ex(context, 1, count, &entry, 0) == EINVAL);
    CHECK(ibv_query_gid(context, 1, -1, &entry.gid) == -1);
    CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
    CHECK(ibv_get_pkey_index(context, 1, pkey) == 0 && ibv_get_pkey_index(context, 1, 1) == -1);
}

static void destroy(struct end *end)
{
    CHECK(ibv_destroy_cq(end->send_cq) == EBUSY);
    CHECK(ibv_destroy_comp_channel(end->channel) == EBUSY);
    CHECK(ibv_destroy_qp(end->qp) == 0);
    CHECK(ibv_destroy_qp(end->qp) == EINVAL);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    CHECK(ibv_destroy_cq(end->send_cq) == 0 && ibv_destroy_cq(end->recv_cq) == 0);
    CHECK(ibv_destroy_cq(end->recv_cq) == EINVAL);
    CHECK(ibv_destroy_comp_channel(end->channel) == 0);
    CHECK(ibv_dereg_mr(end->mr) == 0 && ibv_dereg_mr(end->mr) == EINVAL);
    free(end->bytes);
}

static void open_device(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0 && !list[count]);
    context = ibv_open_device(list[count - 1]);
    CHECK(context && context->num_comp_vectors == 1);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    CHECK(pd && pd->context == context);
}

static void close_device(void)
{
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_pd(pd) == EINVAL);
    CHECK(ibv_close_device(context) == 0 && ibv_close_device(context) == EINVAL);
}

/* In a child that has opened the device: to close its parent's context closes no device of the child. */
static void close_inherited(struct ibv_context *inherited)
{
    struct ibv_context *first = context;
    struct ibv_pd *first_pd = pd;
    CHECK(ibv_close_device(inherited) == 0 && ibv_close_device(inherited) == EINVAL);
    /* All contexts of a process share a device, so objects of two contexts work together. */
    open_device();
    struct ibv_cq *cq = ibv_create_cq(first, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}};
    init.qp_type = IBV_QPT_RC;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(cq && qp && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    close_device();
    context = first;
    pd = first_pd;
}

/* A child opens the device anew, and moves data while its parent does. */
static void forks(void)
{
    struct end a = create(), b = create();
    connect_to(&a, &b);
    connect_to(&b, &a);
    transfers(&a, &b);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        struct ibv_context *inherited = context;
        open_device();
        close_inherited(inherited);
        struct end c = create(), d = create();
        CHECK(c.qp->qp_num != a.qp->qp_num && c.qp->qp_num != b.qp->qp_num);
        connect_to(&c, &d);
        connect_to(&d, &c);
        transfers(&c, &d);
        destroy(&c);
        destroy(&d);
        close_device();
        _exit(0);
    }
    int status;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0)
        transfers(&a, &b);
    CHECK(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    transfers(&a, &b);
    destroy(&a);
    destroy(&b);
}

int main(void)
{
    open_device();
    queries();
    struct end a = create(), b = create();
    for (int round = 0; round < 2 * gid_count(); round++) {
        gid_index = round % gid_count();
        connect_to(&a, &b);
        connect_to(&b, &a);
        query_of_an_old_program(&a);
        transfers(&a, &b);
        atomics(&a, &b);
        bad_requests(&a, &b);
        is_reset(&a);
    }
    refusals(&a);
    shared_receives();
    for (gid_index = 0; gid_index < gid_count(); gid_index++)
        datagrams();
    gid_index = 0;
    windows();
    changed_regions();
    drained_queues();
    built_and_read();
    forks();
    destroy(&a);
    destroy(&b);
    close_device();
    puts("all as promised");
    return 0;
}
