/* Random calls, legal and illegal, beside a small model of the objects that live: `random SECONDS SEED`. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum kind { PD, CHANNEL, CQ, MR, AH, SRQ, QP, KINDS };
enum { SLOTS = 6, DEPTH = 8, CQ_DEPTH = 1 << 16 };

struct object {
    void *handle; /* NULL if there is none */
    struct object *uses[4];
    unsigned serial;                   /* changes with each RESET too, and is part of `wr_id` */
    unsigned posted_sends, posted_recvs; /* without a completion that was polled */
    enum ibv_qp_type type;
    enum ibv_qp_state state;
};

static struct object objects[KINDS][SLOTS];
static void *former[KINDS]; /* a handle whose object has ended */
static struct ibv_context *context;
static union ibv_gid gid;
static char bytes[4096];
static uint64_t seed;
static unsigned serials;
/* What a run must have met. */
static unsigned busy, connected, completed, failed;

static unsigned below(unsigned bound)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 16) % bound;
}

static struct object *any(enum kind kind)
{
    return &objects[kind][below(SLOTS)];
}

static int is_used(const struct object *object)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int slot = 0; slot < SLOTS; slot++)
            for (int use = 0; use < 4; use++)
                if (objects[kind][slot].handle && objects[kind][slot].uses[use] == object)
                    return 1;
    return 0;
}

static struct ibv_ah_attr own_address(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}};
    return attr;
}

/* Creates an object of these others, one of which may be wrong. */
static void *make(enum kind kind, void *pd, void *send_cq, void *recv_cq, void *other,
                  enum ibv_qp_type type)
{
    struct ibv_ah_attr address = own_address();
    struct ibv_srq_init_attr srq = {.attr = {DEPTH, 1, 0}};
    struct ibv_qp_init_attr qp = {.send_cq = send_cq,
                                  .recv_cq = recv_cq,
                                  .srq = other,
                                  .cap = {DEPTH, DEPTH, 1, 1, 16},
                                  .qp_type = type};
    errno = 0;
    switch (kind) {
    case PD: return ibv_alloc_pd(context);
    case CHANNEL: return ibv_create_comp_channel(context);
    case CQ: return ibv_create_cq(context, CQ_DEPTH, NULL, other, 0);
    case MR: return ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    case AH: return ibv_create_ah(pd, &address);
    case SRQ: return ibv_create_srq(pd, &srq);
    default: return ibv_create_qp(pd, &qp);
    }
}

static int end(enum kind kind, void *handle)
{
    switch (kind) {
    case PD: return ibv_dealloc_pd(handle);
    case CHANNEL: return ibv_destroy_comp_channel(handle);
    case CQ: return ibv_destroy_cq(handle);
    case MR: return ibv_dereg_mr(handle);
    case AH: return ibv_destroy_ah(handle);
    case SRQ: return ibv_destroy_srq(handle);
    default: return ibv_destroy_qp(handle);
    }
}

static void create(enum kind kind)
{
    static const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    struct object *object = any(kind), made = {.serial = ++serials, .type = types[below(3)]};
    if (object->handle)
        return;
    if (kind >= MR)
        made.uses[0] = any(PD);
    if (kind == CQ && below(2))
        made.uses[3] = any(CHANNEL);
    if (kind == QP) {
        made.uses[1] = any(CQ);
        made.uses[2] = any(CQ);
        if (below(3) == 0)
            made.uses[3] = any(SRQ);
    }
    void *handles[4] = {NULL};
    int is_whole = 1;
    for (int use = 0; use < 4; use++)
        if (made.uses[use]) {
            handles[use] = made.uses[use]->handle;
            /* NULL is no channel or shared queue, and then all is well. */
            if (!handles[use] && use == 3)
                made.uses[use] = NULL;
            is_whole &= handles[use] || use == 3;
        }
    made.handle = make(kind, handles[0], handles[1], handles[2], handles[3], made.type);
    if (is_whole) {
        CHECK(made.handle);
        *object = made;
    } else {
        CHECK(!made.handle && errno == EINVAL);
    }
}

static void destroy(enum kind kind)
{
    struct object *object = any(kind);
    int expected = !object->handle ? EINVAL : is_used(object) ? EBUSY : 0;
    CHECK(end(kind, object->handle) == expected);
    busy += expected == EBUSY;
    if (!expected) {
        former[kind] = object->handle;
        object->handle = NULL;
    }
}

static int is_living(const void *handle)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int slot = 0; slot < SLOTS; slot++)
            if (objects[kind][slot].handle == handle)
                return 1;
    return 0;
}

/* A handle that is no more, or that is of another kind. */
static void use_wrong_handle(enum kind kind)
{
    enum kind other = below(KINDS);
    void *wrong = below(2) ? former[kind] : objects[other][below(SLOTS)].handle;
    if (wrong == former[kind] ? is_living(wrong) : other == kind)
        return;
    CHECK(end(kind, wrong) == EINVAL);
    CHECK(!make(AH, kind == PD ? wrong : NULL, NULL, NULL, NULL, 0) && errno == EINVAL);
    if (kind == QP) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
        struct ibv_qp_init_attr init;
        CHECK(ibv_modify_qp(wrong, &attr, IBV_QP_STATE) == EINVAL);
        CHECK(ibv_query_qp(wrong, &attr, IBV_QP_STATE, &init) == EINVAL);
    }
}

/* Moves a region to another domain or to other bytes, or does neither. */
static void reregister(void)
{
    static const int all[] = {0, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
                              IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION};
    struct object *mr = any(MR), *pd = any(PD);
    int flags = all[below(4)], length = below(sizeof bytes);
    int is_right = mr->handle && flags && (!(flags & IBV_REREG_MR_CHANGE_PD) || pd->handle) &&
                   (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION) || length);
    int result = ibv_rereg_mr(mr->handle, flags, pd->handle, bytes, length, 0);
    CHECK(result == (is_right ? 0 : IBV_REREG_MR_ERR_INPUT) && (is_right || errno == EINVAL));
    if (is_right && flags & IBV_REREG_MR_CHANGE_PD)
        mr->uses[0] = pd;
}

/* The attributes that a move needs, or -1 if there is no such move. */
static int needed(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
    int is_rc = type == IBV_QPT_RC, is_ud = type == IBV_QPT_UD;
    if (to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET))
        return 0;
    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
        return IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
        return is_ud ? 0
                     : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
        return IBV_QP_SQ_PSN | (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                            IBV_QP_MAX_QP_RD_ATOMIC
                                      : 0);
    if ((from == IBV_QPS_RTS || from == IBV_QPS_SQD) && (to == IBV_QPS_RTS || to == IBV_QPS_SQD))
        return 0;
    return from == IBV_QPS_INIT && to == IBV_QPS_INIT ? 0 : -1;
}

/* The state, which a failed request changes to ERR. */
static void look_at(struct object *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp->handle, &attr, IBV_QP_STATE, &init) == 0);
    CHECK(attr.qp_state == qp->state || attr.qp_state == IBV_QPS_ERR);
    CHECK(qp->state != IBV_QPS_RESET || attr.qp_state == IBV_QPS_RESET);
    CHECK(init.cap.max_send_wr == DEPTH && init.qp_type == qp->type);
    qp->state = attr.qp_state;
}

static void modify(void)
{
    struct object *qp = any(QP), *peer = any(QP);
    if (!qp->handle)
        return;
    /* Most moves lead on, so that queue pairs come to work. */
    look_at(qp);
    enum ibv_qp_state to = below(4) ? qp->state + (qp->state < IBV_QPS_SQD) : below(7);
    if (to == IBV_QPS_SQE)
        return;
    struct ibv_qp_attr attr = {
        .qp_state = to,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = ((struct ibv_qp *)(peer->handle ? peer : qp)->handle)->qp_num,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE,
        .ah_attr = own_address(),
        .port_num = 1,
        .timeout = 1,
        .retry_cnt = 1,
        .max_rd_atomic = 1,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
    };
    int mask = needed(qp->type, qp->state, to), is_right = mask >= 0;
    mask = IBV_QP_STATE | (is_right ? mask : 0);
    if (below(8) == 0) {
        mask |= IBV_QP_PATH_MIG_STATE;
        is_right = 0;
    } else if (mask != IBV_QP_STATE && below(8) == 0) {
        mask &= mask - 1; /* without the lowest attribute, which is the state */
        mask = IBV_QP_STATE | (mask & (mask - 1));
        is_right = 0;
    }
    if (is_right && qp->state == IBV_QPS_RTS && to == IBV_QPS_SQD && below(2)) {
        mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
        attr.en_sqd_async_notify = 1;
    }
    int result = ibv_modify_qp(qp->handle, &attr, mask);
    if (result == EINVAL && is_right)
        look_at(qp); /* it may have failed meanwhile */
    CHECK(result == (is_right ? 0 : EINVAL) || (is_right && qp->state == IBV_QPS_ERR));
    if (result == 0) {
        qp->state = to;
        connected += to == IBV_QPS_RTS;
        if (to == IBV_QPS_RESET) {
            qp->serial = ++serials;
            qp->posted_sends = qp->posted_recvs = 0;
        }
    }
}

static void post(void)
{
    struct object *qp = any(QP), *srq = any(SRQ), *ah = any(AH), *mr = any(MR);
    struct ibv_sge sge = {(uintptr_t)bytes, 64, mr->handle ? ((struct ibv_mr *)mr->handle)->lkey : 1};
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = below(3)}, *bad_recv;
    if (srq->handle) {
        recv.wr_id = (uint64_t)srq->serial << 1;
        int result = ibv_post_srq_recv(srq->handle, &recv, &bad_recv);
        CHECK(result == (recv.num_sge > 1 ? EINVAL : 0) ||
              (result == ENOMEM && srq->posted_recvs >= DEPTH));
        srq->posted_recvs += !result;
    }
    if (!qp->handle)
        return;
    look_at(qp);
    recv.wr_id = (uint64_t)qp->serial << 1;
    int result = ibv_post_recv(qp->handle, &recv, &bad_recv);
    int is_wrong = recv.num_sge > 1 || qp->uses[3] || qp->state == IBV_QPS_RESET;
    CHECK(result == (is_wrong ? EINVAL : 0) || (result == ENOMEM && qp->posted_recvs >= DEPTH));
    qp->posted_recvs += !result;

    struct ibv_send_wr send = {.wr_id = (uint64_t)qp->serial << 1 | 1,
                               .sg_list = &sge,
                               .num_sge = below(3),
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    if (qp->type == IBV_QPT_UD) {
        send.wr.ud.ah = ah->handle;
        send.wr.ud.remote_qpn = ((struct ibv_qp *)qp->handle)->qp_num;
    }
    is_wrong = send.num_sge > 1 || qp->state < IBV_QPS_RTS ||
               (qp->type == IBV_QPT_UD && !ah->handle);
    result = ibv_post_send(qp->handle, &send, &bad_send);
    CHECK(result == (is_wrong ? EINVAL : 0) || (result == ENOMEM && qp->posted_sends >= DEPTH));
    qp->posted_sends += !result;
}

/* Completions, each of a request that was posted. */
static void poll_all(void)
{
    struct object *cq = any(CQ);
    struct ibv_wc wc;
    while (cq->handle && ibv_poll_cq(cq->handle, 1, &wc) > 0) {
        CHECK(wc.wr_id >> 1 <= serials);
        *(wc.status == IBV_WC_SUCCESS ? &completed : &failed) += 1;
        for (int slot = 0; slot < SLOTS; slot++) {
            struct object *of[2] = {&objects[QP][slot], &objects[SRQ][slot]};
            for (int at = 0; at < 2; at++)
                if (of[at]->handle && of[at]->serial == wc.wr_id >> 1) {
                    unsigned *posted = wc.wr_id & 1 ? &of[at]->posted_sends : &of[at]->posted_recvs;
                    CHECK((*posted)-- > 0);
                }
        }
    }
    struct ibv_async_event event;
    while (ibv_get_async_event(context, &event) == 0)
        ibv_ack_async_event(&event);
    CHECK(errno == EAGAIN);
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    time_t until = time(NULL) + atoi(arguments[1]);
    seed = strtoull(arguments[2], NULL, 10) * 2 + 1;
    fprintf(stderr, "seed %s\n", arguments[2]);
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    CHECK(list && devices > 0);
    context = ibv_open_device(list[devices - 1]);
    ibv_free_device_list(list);
    CHECK(context && ibv_query_gid(context, 1, 0, &gid) == 0);
    CHECK(fcntl(context->async_fd, F_SETFL, O_NONBLOCK) == 0);
    unsigned long calls = 0;
    for (; calls % 1024 || time(NULL) < until; calls++) {
        enum kind kind = below(KINDS);
        switch (below(11)) {
        case 0: case 1: create(kind); break;
        case 2: if (below(4) == 0) destroy(kind); break;
        case 3: use_wrong_handle(kind); break;
        case 4: case 5: case 6: modify(); break;
        case 7: case 8: post(); break;
        case 9: poll_all(); break;
        case 10: reregister(); break;
        }
    }
    for (int kind = KINDS - 1; kind >= 0; kind--)
        for (int slot = 0; slot < SLOTS; slot++)
            CHECK(!objects[kind][slot].handle || end(kind, objects[kind][slot].handle) == 0);
    CHECK(ibv_close_device(context) == 0);
    CHECK(busy && connected && completed && failed);
    printf("%lu calls, %u completions, all as promised\n", calls, completed + failed);
    return 0;
}
