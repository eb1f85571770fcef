/* Random calls, legal and illegal, beside a small model of the objects that live: `random SECONDS SEED`. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum kind { PD, CHANNEL, CQ, MR, MW, AH, SRQ, QP, KINDS };
enum { SLOTS = 6, DEPTH = 8, CQ_DEPTH = 1 << 16, INLINE = 16, GRH = 40 };
/* A message has up to LENGTH bytes from one of the first FIRSTS words on. Each request has an area. */
enum { SOURCE = 1 << 24, FIRSTS = 1024, LENGTH = 1900, GUARD = 8, AREAS = 512, AREA_BYTES = 2048 };
enum { ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC };

struct object {
    void *handle; /* NULL if there is none */
    struct object *uses[4];
    unsigned serial; /* changes with each RESET, with each change of a region, and with each bind of a window */
    unsigned posted_sends, posted_recvs; /* without a completion that was polled */
    enum ibv_qp_type type;
    enum ibv_qp_state state;
    int may_read;        /* a queue pair was in RTS */
    struct object *peer; /* of a queue pair, and the peer's serial then */
    unsigned peer_serial;
    uint64_t begin; /* of a region, or of the part of one that a window shows */
    unsigned length, access;
    /* Of a window: */
    uint32_t key;
    struct object *shown; /* the region, or NULL */
    uint64_t bind;        /* the number of a bind whose outcome nobody knows, or 0 */
    unsigned regions;     /* a bit for each slot whose region the window may show */
};

/* Where a key and an address lead. */
struct range {
    int is_named;
    struct object *mr; /* a region or a window, NULL if none has the key */
    unsigned serial, access;
    uint64_t addr;
};

/* A work request that was posted. Its number is its `wr_id`, and its area is that of its place in `requests`. */
struct request {
    uint64_t number;
    struct object *owner; /* a queue pair or shared receive queue */
    unsigned serial;
    int is_receive, is_done;
    enum ibv_wr_opcode opcode;
    struct range local, remote;
    unsigned first, length;
    uint64_t before, after; /* the word of an atomic */
    /* Of a bind: */
    struct object *window;
    uint32_t key;
    unsigned access;
    int was_open; /* nobody knew the outcome of the bind before */
};

static struct object objects[KINDS][SLOTS];
static void *former[KINDS]; /* a handle whose object has ended */
static struct ibv_context *context;
static union ibv_gid gid;
static struct {
    uint32_t source[FIRSTS + LENGTH / 4 + 1]; /* never changes, and no two words are equal */
    _Alignas(8) unsigned char areas[AREAS][AREA_BYTES];
    unsigned char tail[AREA_BYTES]; /* wrong addresses are here */
} memory;
static struct request requests[AREAS];
static uint64_t seed, numbers;
static unsigned serials;
/* What a run must have met: successes by opcode, and other things. */
static unsigned succeeded[IBV_WR_ATOMIC_FETCH_AND_ADD + 1];
static unsigned busy, connected, failed, refused, received, received_writes, bound, unbound, through_windows;

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

/* A random object, most often of this protection domain. */
static struct object *any_in(enum kind kind, const struct object *pd)
{
    struct object *object = any(kind);
    for (int tries = 0; tries < 2 * SLOTS && (!object->handle || object->uses[0] != pd); tries++)
        object = any(kind);
    return object;
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

static unsigned bit_of(const struct object *mr)
{
    return 1u << (mr - objects[MR]);
}

static int is_window(const struct object *object)
{
    return object >= objects[MW] && object < objects[MW] + SLOTS;
}

/* Whether a window shows a part of the region: 0 for no, 1 for yes, -1 if nobody knows. */
static int is_shown(const struct object *mr)
{
    int answer = 0;
    for (int slot = 0; slot < SLOTS; slot++) {
        const struct object *mw = &objects[MW][slot];
        if (mw->handle && mw->regions & bit_of(mr)) {
            if (!mw->bind)
                return 1;
            answer = -1;
        }
    }
    return answer;
}

/* Checks the error of a call that needs a region without windows. */
static void check_shown(const struct object *mr, int error, int was_shown)
{
    CHECK(was_shown < 0 ? !error || error == EBUSY : error == (was_shown ? EBUSY : 0));
    busy += error == EBUSY;
}

static struct ibv_ah_attr own_address(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}};
    return attr;
}

/* Creates an object of these others, one of which may be wrong. The functions for windows in the header follow
   pointers, so the library's own are called. */
static void *make(enum kind kind, void *pd, void *send_cq, void *recv_cq, void *other,
                  enum ibv_qp_type type, int access)
{
    struct ibv_ah_attr address = own_address();
    struct ibv_srq_init_attr srq = {.attr = {DEPTH, 1, 0}};
    struct ibv_qp_init_attr qp = {.send_cq = send_cq,
                                  .recv_cq = recv_cq,
                                  .srq = other,
                                  .cap = {DEPTH, DEPTH, 1, 1, INLINE},
                                  .qp_type = type};
    errno = 0;
    switch (kind) {
    case PD: return ibv_alloc_pd(context);
    case CHANNEL: return ibv_create_comp_channel(context);
    case CQ: return ibv_create_cq(context, CQ_DEPTH, NULL, other, 0);
    case MR: return ibv_reg_mr(pd, &memory, sizeof memory, access);
    case MW: return context->ops.alloc_mw(pd, access);
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
    case MW: return context->ops.dealloc_mw(handle);
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
    int access = below(4) ? ALL_RIGHTS : below(ALL_RIGHTS + 1);
    if (!(access & IBV_ACCESS_LOCAL_WRITE))
        access &= IBV_ACCESS_REMOTE_READ;
    if (kind == MR) {
        access |= below(4) ? IBV_ACCESS_MW_BIND : 0;
        made.begin = (uintptr_t)&memory;
        made.length = sizeof memory;
        made.access = access;
    } else if (kind == MW) {
        access = below(4) ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2;
    }
    /* Most are in one domain, so that requests find regions. */
    if (kind >= MR)
        made.uses[0] = below(4) ? &objects[PD][0] : any(PD);
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
    made.handle = make(kind, handles[0], handles[1], handles[2], handles[3], made.type, access);
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
    int was_shown = kind == MR && object->handle ? is_shown(object) : 0, result = end(kind, object->handle);
    if (was_shown) {
        check_shown(object, result, was_shown);
    } else {
        CHECK(result == expected);
        busy += expected == EBUSY;
    }
    if (!result) {
        former[kind] = object->handle;
        object->handle = NULL;
        object->serial = ++serials;
        for (int slot = 0; slot < SLOTS && kind == MR; slot++)
            objects[MW][slot].regions &= ~bit_of(object);
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
    CHECK(!make(AH, kind == PD ? wrong : NULL, NULL, NULL, NULL, 0, 0) && errno == EINVAL);
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
    struct object *mr = any(MR), *pd = below(2) ? &objects[PD][0] : any(PD);
    int flags = all[below(4)], length = below(4) ? sizeof memory : below(sizeof memory);
    int is_right = mr->handle && flags && (!(flags & IBV_REREG_MR_CHANGE_PD) || pd->handle) &&
                   (!(flags & IBV_REREG_MR_CHANGE_TRANSLATION) || length);
    int was_shown = is_shown(mr);
    int result = ibv_rereg_mr(mr->handle, flags, pd->handle, &memory, length, 0);
    CHECK(!result || result == IBV_REREG_MR_ERR_INPUT);
    if (is_right)
        check_shown(mr, result ? errno : 0, was_shown);
    else
        CHECK(result && errno == EINVAL);
    if (result)
        return;
    mr->serial = ++serials;
    if (flags & IBV_REREG_MR_CHANGE_PD)
        mr->uses[0] = pd;
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
        mr->length = length;
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

/* The first packet number of a queue pair, another one after each RESET: a packet of an earlier connection
   means nothing to a later one. */
static unsigned first_psn(const struct object *qp)
{
    return qp->serial * 2654435761u >> 8;
}

/* The peer for a queue pair: most often one that has it as its peer, or that has none yet. */
static struct object *peer_for(struct object *qp)
{
    struct object *peer = any(QP);
    for (int slot = 0; slot < SLOTS && below(8); slot++) {
        struct object *other = &objects[QP][slot];
        if (!other->handle || other->type != qp->type)
            continue;
        if (other->state >= IBV_QPS_RTR && other->peer == qp && other->peer_serial == qp->serial)
            return other;
        if (other->state < IBV_QPS_RTR)
            peer = other;
    }
    return peer->handle ? peer : qp;
}

static void modify(void)
{
    struct object *qp = any(QP);
    if (!qp->handle)
        return;
    struct object *peer = peer_for(qp);
    /* Most moves lead on, so that queue pairs come to work. */
    look_at(qp);
    enum ibv_qp_state to = !below(4)                  ? below(7)
                           : qp->state == IBV_QPS_ERR ? IBV_QPS_RESET
                                                      : qp->state + (qp->state < IBV_QPS_RTS);
    if (to == IBV_QPS_SQE)
        return;
    struct ibv_qp_attr attr = {
        .qp_state = to,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = ((struct ibv_qp *)peer->handle)->qp_num,
        .rq_psn = first_psn(peer),
        .sq_psn = first_psn(qp),
        .qp_access_flags = below(4) ? ALL_RIGHTS : below(ALL_RIGHTS + 1),
        .ah_attr = own_address(),
        .port_num = 1,
        .timeout = below(8) ? 10 : 1,
        .retry_cnt = below(8),
        .rnr_retry = below(8),
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
        qp->may_read |= to == IBV_QPS_RTS;
        if (to == IBV_QPS_RTR) {
            qp->peer = peer;
            qp->peer_serial = peer->serial;
        }
        if (to == IBV_QPS_RESET) {
            qp->serial = ++serials;
            qp->posted_sends = qp->posted_recvs = 0;
            qp->may_read = 0;
        }
    }
}

/* A key that no region has. Keys are random, so that one in a billion of these keys is right. */
static uint32_t wrong_key(void)
{
    return below(1 << 24) << 8 | below(256);
}

/* Names bytes to this end or to the peer, most often with a right key and address. */
static struct range name_bytes(struct object *mr, int access, unsigned length, uint64_t *addr, uint32_t *key,
                               int is_remote)
{
    struct ibv_mr *region = mr->handle;
    if (below(32) == 0)
        *addr = (uintptr_t)&memory + sizeof memory - length / 2 / 8 * 8;
    struct range range = {1, region && below(32) ? mr : NULL, mr->serial, access, *addr};
    *key = !range.mr ? wrong_key() : is_window(mr) ? mr->key : is_remote ? region->rkey : region->lkey;
    return range;
}

/* Whether the region is as it was when the request was posted. */
static int is_unchanged(struct range range)
{
    return !range.mr || range.mr->serial == range.serial;
}

/* Whether nobody may reach so many bytes there. */
static int is_wrong_for(struct range range, unsigned length)
{
    if (!range.is_named || length == 0 || !is_unchanged(range))
        return 0;
    return !range.mr || (range.mr->access & range.access) != range.access || range.addr < range.mr->begin ||
           range.addr + length > range.mr->begin + range.mr->length;
}

static int is_pending(const struct request *request)
{
    return request->owner && !request->is_done && request->owner->handle &&
           request->owner->serial == request->serial;
}

/* A new request with an area that no pending one uses, or NULL. */
static struct request *new_request(struct object *owner, int is_receive, unsigned length)
{
    for (int tries = 0; tries < 64; tries++) {
        struct request *request = &requests[++numbers % AREAS];
        if (is_pending(request))
            continue;
        *request = (struct request){.number = numbers,
                                    .owner = owner,
                                    .serial = owner->serial,
                                    .is_receive = is_receive,
                                    .is_done = 1, /* until it is posted */
                                    .length = length};
        memset(memory.areas[numbers % AREAS], 0xee, length + GUARD);
        return request;
    }
    return NULL;
}

static unsigned char *area(const struct request *request)
{
    return memory.areas[request - requests];
}

/* Checks the result of a post, and notes the request. */
static void posted(struct request *request, int result, int is_wrong)
{
    unsigned *count = request->is_receive ? &request->owner->posted_recvs : &request->owner->posted_sends;
    CHECK((is_wrong ? result == EINVAL || result == EOPNOTSUPP : !result) ||
          (result == ENOMEM && *count >= DEPTH));
    *count += !result;
    request->is_done = result != 0;
}

static void post_receive(struct object *owner, int is_srq)
{
    unsigned length = below(4) ? LENGTH + GRH : below(LENGTH);
    struct request *request = new_request(owner, 1, length);
    if (!request)
        return;
    struct ibv_sge sge = {(uintptr_t)area(request), length, 0};
    struct ibv_recv_wr recv = {.wr_id = request->number, .sg_list = &sge}, *bad;
    recv.num_sge = below(8) ? 1 : below(3);
    request->length = recv.num_sge == 1 ? length : 0;
    struct object *mr = any_in(MR, owner->uses[0]);
    request->local =
        name_bytes(mr, IBV_ACCESS_LOCAL_WRITE, request->length, &sge.addr, &sge.lkey, 0);
    int is_wrong = recv.num_sge > 1 || (!is_srq && (owner->uses[3] || owner->state == IBV_QPS_RESET));
    int result = is_srq ? ibv_post_srq_recv(owner->handle, &recv, &bad)
                        : ibv_post_recv(owner->handle, &recv, &bad);
    posted(request, result, is_wrong);
}

/* A queue pair takes requests before RTS only if a receive has failed meanwhile. */
static void check_early(struct object *qp, int result)
{
    if (!result && qp->state < IBV_QPS_RTS) {
        look_at(qp);
        CHECK(qp->state == IBV_QPS_ERR);
    }
}

static void post_send(struct object *qp)
{
    static const enum ibv_wr_opcode opcodes[] = {
        IBV_WR_SEND,                 IBV_WR_SEND,                 IBV_WR_SEND_WITH_IMM,
        IBV_WR_SEND_WITH_IMM,        IBV_WR_RDMA_WRITE,           IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_WRITE_WITH_IMM,  IBV_WR_RDMA_READ,            IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,   IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD,
        /* These never succeed. */
        IBV_WR_LOCAL_INV,            IBV_WR_SEND_WITH_INV,        IBV_WR_TSO,
        99};
    enum ibv_wr_opcode opcode = opcodes[below(below(4) ? 12 : 16)];
    if (qp->type == IBV_QPT_UD && below(4))
        opcode = IBV_WR_SEND;
    int is_cas = opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    int is_atomic = is_cas || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    int is_read = opcode == IBV_WR_RDMA_READ || is_atomic;
    int is_write = opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    int has_imm = opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM;
    unsigned length = is_atomic && below(8) ? 8 : below(2) ? below(LENGTH) : below(2 * INLINE);
    struct request *request = new_request(qp, 0, length < 16 ? 16 : length);
    if (!request)
        return;
    request->opcode = opcode;
    request->first = below(FIRSTS);
    unsigned char *own = area(request), *source = (unsigned char *)&memory.source[request->first];
    struct ibv_sge sge = {(uintptr_t)(is_atomic ? own + 8 : is_read ? own : source), length, 0};
    struct ibv_send_wr send = {.wr_id = request->number, .sg_list = &sge, .opcode = opcode}, *bad;
    send.num_sge = below(8) ? 1 : below(3);
    request->length = send.num_sge != 1 ? 0 : is_atomic && length > 8 ? 8 : length;
    int is_inline = opcode != IBV_WR_LOCAL_INV && below(8) == 0;
    send.send_flags = IBV_SEND_SIGNALED | (is_inline ? IBV_SEND_INLINE : 0) |
                      (below(8) ? 0 : IBV_SEND_FENCE) | (below(8) ? 0 : IBV_SEND_SOLICITED);
    /* The receiver of a SEND finds the first word by the immediate, that of a WRITE the request. */
    send.imm_data = htonl(is_write ? (uint32_t)request->number : request->first);
    if (!has_imm)
        send.invalidate_rkey = wrong_key();
    request->local = name_bytes(any_in(MR, qp->uses[0]), is_read ? IBV_ACCESS_LOCAL_WRITE : 0,
                                request->length, &sge.addr, &sge.lkey, 0);
    /* The library copies inline data at once, and needs no key. */
    if (is_inline) {
        request->local.is_named = 0;
        sge.addr = (uintptr_t)source;
    }
    uint64_t addr = (uintptr_t)(opcode == IBV_WR_RDMA_READ ? source : own);
    uint32_t rkey;
    struct object *peers_pd = qp->peer ? qp->peer->uses[0] : NULL, *window = any_in(MW, peers_pd);
    int uses_window = window->handle && !window->bind && (window->shown ? below(2) : below(8) == 0);
    if (is_read || is_write)
        request->remote = name_bytes(uses_window ? window : any_in(MR, peers_pd),
                                     is_atomic  ? IBV_ACCESS_REMOTE_ATOMIC
                                     : is_write ? IBV_ACCESS_REMOTE_WRITE
                                                : IBV_ACCESS_REMOTE_READ,
                                     request->length, &addr, &rkey, 1);
    if (is_atomic) {
        addr += below(16) == 0;
        request->before = (uint64_t)below(1 << 24) << 32 | below(1 << 24);
        memcpy(own, &request->before, 8);
        uint64_t operand = below(1 << 24);
        int swaps = below(2);
        request->after = !is_cas ? request->before + operand : swaps ? operand : request->before;
        send.wr.atomic.remote_addr = addr;
        send.wr.atomic.rkey = rkey;
        send.wr.atomic.compare_add = is_cas ? request->before + !swaps : operand;
        send.wr.atomic.swap = operand;
    } else if (is_read || is_write) {
        send.wr.rdma.remote_addr = addr;
        send.wr.rdma.rkey = rkey;
    }
    struct object *ah = any_in(AH, qp->uses[0]), *to = any(QP);
    if (qp->type == IBV_QPT_UD) {
        send.wr.ud.ah = ah->handle;
        send.wr.ud.remote_qpn = ((struct ibv_qp *)(to->handle ? to : qp)->handle)->qp_num;
        send.wr.ud.remote_qkey = below(8) == 0;
    }
    int is_known = opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_LOCAL_INV ||
                   opcode == IBV_WR_SEND_WITH_INV;
    int is_unreliable_send = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
    int is_wrong =
        !is_known || (send.num_sge > 1 && opcode != IBV_WR_LOCAL_INV) ||
        (is_inline && (is_read || request->length > INLINE)) || (is_read && !qp->may_read) ||
        (is_atomic && (request->length < 8 || addr % 8)) ||
        (qp->type == IBV_QPT_UC && !is_unreliable_send && !is_write) ||
        (qp->type == IBV_QPT_UD && (!ah->handle || !is_unreliable_send));
    int result = ibv_post_send(qp->handle, &send, &bad);
    check_early(qp, result);
    posted(request, result, is_wrong || qp->state < IBV_QPS_RTS);
}

/* Binds a window of type 1 to a part of a region, or to nothing. Some of these binds are wrong. */
static void bind_window(void)
{
    struct object *qp = any(QP), *mr = any_in(MR, qp->uses[0]), *mw = any_in(MW, qp->uses[0]);
    /* The outcome is open until the completion comes. If the queue pair ends before, it never comes. */
    struct request *last = &requests[mw->bind % AREAS];
    if (!qp->handle || (mw->bind && last->number == mw->bind && is_pending(last)))
        return;
    look_at(qp);
    struct request *request = new_request(qp, 0, 16);
    if (!request)
        return;
    request->opcode = IBV_WR_BIND_MW;
    request->length = below(8) ? mr->length : below(2) ? 0 : below(sizeof memory);
    request->access = below(4) ? ALL_RIGHTS & ~IBV_ACCESS_LOCAL_WRITE : below(ALL_RIGHTS + 1);
    int writes = request->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    int needs = IBV_ACCESS_MW_BIND | (writes ? IBV_ACCESS_LOCAL_WRITE : 0);
    uint64_t addr = (uintptr_t)&memory + (below(8) ? 0 : below(64));
    request->local = (struct range){1, mr, mr->serial, needs, addr};
    /* A peer names the bytes of a window of type 1 by their addresses. */
    unsigned wrong = below(16) ? 0 : below(2) ? IBV_ACCESS_ZERO_BASED : 1u << 19;
    struct ibv_mw_bind asked = {.wr_id = request->number, .send_flags = IBV_SEND_SIGNALED};
    asked.bind_info = (struct ibv_mw_bind_info){mr->handle, addr, request->length, request->access | wrong};
    struct ibv_mw *window = mw->handle;
    uint32_t before = window ? window->rkey : 0;
    int is_wrong = qp->type != IBV_QPT_RC || !window || window->type != IBV_MW_TYPE_1 || wrong ||
                   (request->length && !mr->handle);
    int result = context->ops.bind_mw(qp->handle, window, &asked);
    check_early(qp, result);
    posted(request, result, is_wrong || qp->state < IBV_QPS_RTS);
    /* Each bind gives the window its next key. */
    CHECK(!window || (window->rkey != before) == !result);
    CHECK(!window || window->rkey >> 8 == before >> 8);
    if (result)
        return;
    request->window = mw;
    request->key = window->rkey;
    request->was_open = mw->bind != 0;
    mw->bind = request->number;
    mw->serial = ++serials;
    mw->regions |= request->length ? bit_of(mr) : 0;
}

/* The completion of a bind. */
static void check_bind(const struct request *request, const struct ibv_wc *wc)
{
    struct object *mw = request->window, *mr = request->local.mr, *pd = request->owner->uses[0];
    if (!mw->handle || mw->bind != request->number)
        return; /* the window has ended */
    int is_right = mw->uses[0] == pd;
    if (request->length)
        is_right &= mr->handle && mr->uses[0] == pd && !is_wrong_for(request->local, request->length);
    if (is_unchanged(request->local))
        CHECK(wc->status == IBV_WC_SUCCESS ? is_right : !is_right || wc->status != IBV_WC_MW_BIND_ERR);
    mw->serial = ++serials;
    if (wc->status == IBV_WC_SUCCESS) {
        CHECK(wc->opcode == IBV_WC_BIND_MW);
        mw->shown = request->length ? mr : NULL;
        mw->begin = request->local.addr;
        mw->length = request->length;
        mw->access = request->access;
        mw->key = request->key;
        mw->bind = 0;
        *(request->length ? &bound : &unbound) += 1;
    } else if (!request->was_open) {
        mw->bind = 0;
    }
    if (!mw->bind)
        mw->regions = mw->shown ? bit_of(mw->shown) : 0;
}

static void post(void)
{
    struct object *qp = any(QP), *srq = any(SRQ);
    for (int count = below(3); srq->handle && count > 0; count--)
        post_receive(srq, 1);
    for (int count = below(4); qp->handle && count > 0; count--) {
        look_at(qp);
        post_receive(qp, 0);
        post_send(qp);
    }
}

static int is_source(const unsigned char *bytes, unsigned first, unsigned length)
{
    return memcmp(bytes, &memory.source[first], length) == 0;
}

/* A send that succeeded. */
static void check_sent(const struct request *request, const struct ibv_wc *wc)
{
    static const enum ibv_wc_opcode opcodes[] = {
        [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
        [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
        [IBV_WR_SEND] = IBV_WC_SEND,
        [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
        [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
        [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
        [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
    };
    int is_reliable = request->owner->type == IBV_QPT_RC;
    /* No window of type 2 is bound that a SEND_WITH_INV or a LOCAL_INV could end. */
    CHECK(request->opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD && wc->opcode == opcodes[request->opcode]);
    CHECK(!is_wrong_for(request->local, request->length));
    CHECK(!is_reliable || !is_wrong_for(request->remote, request->length));
    succeeded[request->opcode]++;
    through_windows += is_reliable && request->length && request->remote.mr && is_window(request->remote.mr);
    const unsigned char *own = area(request);
    uint64_t words[2];
    memcpy(words, own, sizeof words);
    /* Bytes that are on their way when a region changes may be lost. */
    int is_whole = is_unchanged(request->local) && is_unchanged(request->remote);
    unsigned length = request->length;
    switch (request->opcode) {
    case IBV_WR_RDMA_WRITE: case IBV_WR_RDMA_WRITE_WITH_IMM:
        CHECK(!is_reliable || !is_whole || is_source(own, request->first, length));
        for (unsigned at = 0; at < length; at++)
            CHECK(own[at] == 0xee || own[at] == ((unsigned char *)&memory.source[request->first])[at]);
        CHECK(own[length] == 0xee && own[length + GUARD - 1] == 0xee);
        break;
    case IBV_WR_RDMA_READ:
        CHECK(!is_whole || is_source(own, request->first, length));
        CHECK(own[length] == 0xee && own[length + GUARD - 1] == 0xee);
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP: case IBV_WR_ATOMIC_FETCH_AND_ADD:
        CHECK(!is_whole || (words[0] == request->after && words[1] == request->before));
        break;
    default: break;
    }
}

/* A receive that succeeded. */
static void check_received(const struct request *request, const struct ibv_wc *wc)
{
    if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        const struct request *write = &requests[ntohl(wc->imm_data) % AREAS];
        if ((uint32_t)write->number != ntohl(wc->imm_data))
            return; /* it was long ago */
        CHECK(wc->byte_len == write->length && write->opcode == IBV_WR_RDMA_WRITE_WITH_IMM);
        CHECK(!is_wrong_for(write->local, write->length));
        CHECK(!is_wrong_for(write->remote, write->length));
        if (is_unchanged(write->local) && is_unchanged(write->remote))
            CHECK(is_source(area(write), write->first, write->length));
        received_writes++;
        return;
    }
    CHECK(wc->opcode == IBV_WC_RECV && wc->byte_len <= request->length);
    CHECK(!is_wrong_for(request->local, wc->byte_len));
    const unsigned char *message = area(request);
    unsigned header = wc->wc_flags & IBV_WC_GRH ? GRH : 0, length = wc->byte_len - header, first;
    CHECK(wc->byte_len >= header);
    received++;
    /* A short message may fit into the rest of the memory behind a wrong address. */
    if (length < sizeof first || !is_unchanged(request->local) ||
        request->local.addr != (uintptr_t)message)
        return;
    memcpy(&first, message + header, sizeof first);
    first -= SOURCE;
    CHECK(first < FIRSTS && is_source(message + header, first, length));
    CHECK(!(wc->wc_flags & IBV_WC_WITH_IMM) || ntohl(wc->imm_data) == first);
}

/* A completion of a request that was posted. */
static void complete(const struct ibv_wc *wc)
{
    CHECK(wc->wr_id > 0 && wc->wr_id <= numbers);
    struct request *request = &requests[wc->wr_id % AREAS];
    struct object *owner = request->owner;
    if (request->number != wc->wr_id || !owner->handle || owner->serial != request->serial)
        return; /* the owner has ended */
    CHECK(!request->is_done);
    request->is_done = 1;
    unsigned *count = request->is_receive ? &owner->posted_recvs : &owner->posted_sends;
    CHECK((*count)-- > 0);
    int is_bind = !request->is_receive && request->opcode == IBV_WR_BIND_MW;
    if (is_bind)
        check_bind(request, wc);
    if (wc->status == IBV_WC_SUCCESS) {
        if (is_bind)
            return;
        (request->is_receive ? check_received : check_sent)(request, wc);
        return;
    }
    failed++;
    refused += wc->status == IBV_WC_REM_ACCESS_ERR;
    if (owner >= objects[QP] && owner < objects[QP] + SLOTS) {
        look_at(owner);
        CHECK(owner->state == IBV_QPS_ERR);
    }
}

static void poll_all(void)
{
    struct object *cq = any(CQ);
    struct ibv_wc wc;
    while (cq->handle && ibv_poll_cq(cq->handle, 1, &wc) > 0)
        complete(&wc);
    struct ibv_async_event event;
    while (ibv_get_async_event(context, &event) == 0)
        ibv_ack_async_event(&event);
    CHECK(errno == EAGAIN);
}

static int has_met_all(void)
{
    for (int opcode = 0; opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD; opcode++)
        if (!succeeded[opcode])
            return 0;
    return busy && connected && failed && refused && received && received_writes && bound && unbound &&
           through_windows;
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
    for (unsigned word = 0; word < sizeof memory.source / 4; word++)
        memory.source[word] = SOURCE + word;
    unsigned long calls = 0;
    /* A busy machine gets more time. */
    for (; calls % 1024 || time(NULL) < until || (!has_met_all() && time(NULL) < until + 60); calls++) {
        enum kind kind = below(KINDS);
        switch (below(12)) {
        case 0: case 1: create(kind); break;
        case 2: if (below(4) == 0) destroy(kind); break;
        case 3: use_wrong_handle(kind); break;
        case 4: case 5: case 6: modify(); break;
        case 7: case 8: post(); break;
        case 9: poll_all(); break;
        case 10: if (below(4) == 0) reregister(); break;
        case 11: bind_window(); break;
        }
    }
    for (int kind = KINDS - 1; kind >= 0; kind--)
        for (int slot = 0; slot < SLOTS; slot++)
            CHECK(!objects[kind][slot].handle || end(kind, objects[kind][slot].handle) == 0);
    CHECK(ibv_close_device(context) == 0);
    CHECK(has_met_all());
    unsigned all = 0;
    for (int opcode = 0; opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD; opcode++)
        all += succeeded[opcode];
    printf("%lu calls, %u sends succeeded, %u through windows, %u messages received, %u windows bound, "
           "%u requests failed, all as promised\n",
           calls, all, through_windows, received + received_writes, bound, failed);
    return 0;
}
