/* A program that exits or closes its device right after its last completion has acknowledged the message: its peer
   sees success. */
#include <infiniband/verbs.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define ROUNDS 5
#define BYTES 100

struct end {
    struct ibv_context *context;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    unsigned char bytes[BYTES];
};

/* Opens the last device, and connects to the other process, which is at the other ends of the pipes. */
static void connect_over(struct end *end, int in, int out)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0);
    struct ibv_context *context = end->context = ibv_open_device(list[count - 1]);
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd && (end->cq = ibv_create_cq(context, 4, NULL, NULL, 0)));
    CHECK(end->mr = ibv_reg_mr(pd, end->bytes, BYTES, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_qp_init_attr init = {.send_cq = end->cq, .recv_cq = end->cq, .cap = {4, 4, 1, 1, 0}};
    init.qp_type = IBV_QPT_RC;
    CHECK(end->qp = ibv_create_qp(pd, &init));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int bits = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(end->qp, &attr, bits) == 0);
    struct ibv_sge sge = {(uintptr_t)end->bytes, BYTES, end->mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(end->qp, &recv, &bad) == 0);

    CHECK(write(out, &end->qp->qp_num, 4) == 4 && read(in, &attr.dest_qp_num, 4) == 4);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.ah_attr = (struct ibv_ah_attr){.port_num = 1, .is_global = 1, .grh.hop_limit = 1};
    CHECK(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 12;
    attr.retry_cnt = 3;
    CHECK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    /* Both are ready once both have said so. */
    char ready = 1;
    CHECK(write(out, &ready, 1) == 1 && read(in, &ready, 1) == 1);
}

static enum ibv_wc_status completion(const struct end *end)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(end->cq, 1, &wc)) == 0)
        ;
    CHECK(n == 1);
    return wc.status;
}

/* One process sends, and the other one exits as soon as it has received, or closes its device first. Its queue pair
   is still there. */
static int pair(int closes)
{
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    static struct end end;
    pid_t receiver = fork();
    if (receiver == 0) {
        connect_over(&end, there[0], back[1]);
        enum ibv_wc_status received = completion(&end);
        if (closes)
            CHECK(ibv_close_device(end.context) == 0);
        exit(received == IBV_WC_SUCCESS ? 0 : 1);
    }
    connect_over(&end, back[0], there[1]);
    struct ibv_sge sge = {(uintptr_t)end.bytes, BYTES, end.mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    send.send_flags = IBV_SEND_SIGNALED;
    /* The receiver polls by now, so that its library's thread is asleep. */
    usleep(20000);
    CHECK(ibv_post_send(end.qp, &send, &bad) == 0);
    CHECK(completion(&end) == IBV_WC_SUCCESS);
    int status;
    CHECK(waitpid(receiver, &status, 0) == receiver && status == 0);
    return 0;
}

int main(void)
{
    for (int round = 0; round < 2 * ROUNDS; round++) {
        /* Each pair begins in a process that has no device yet. */
        int status;
        pid_t sender = fork();
        if (sender == 0)
            exit(pair(round % 2));
        CHECK(waitpid(sender, &status, 0) == sender && status == 0);
    }
    puts("all as promised");
    return 0;
}
