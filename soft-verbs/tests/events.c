/* Events of objects that end, and waits for events that signals interrupt. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "check.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_srq *create_srq(void)
{
    struct ibv_srq_init_attr init = {.attr = {8, 1, 0}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    CHECK(srq);
    return srq;
}

static struct ibv_qp *create_qp(struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(qp && ibv_modify_qp(qp, &attr, mask) == 0);
    return qp;
}

/* A queue pair with a shared receive queue raises IBV_EVENT_QP_LAST_WQE_REACHED, and the receives of another
   one complete. */
static void fail(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

/* An empty queue has fewer receives than its limit, and raises IBV_EVENT_SRQ_LIMIT_REACHED. */
static void reach_limit(struct ibv_srq *srq)
{
    struct ibv_srq_attr attr = {.srq_limit = 3};
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
}

static atomic_int destroyed;

static void *destroy_qp(void *qp)
{
    CHECK(ibv_destroy_qp(qp) == 0);
    destroyed = 1;
    return NULL;
}

static void *destroy_srq(void *srq)
{
    CHECK(ibv_destroy_srq(srq) == 0);
    destroyed = 1;
    return NULL;
}

/* Takes an event, and lets another thread destroy the object before the event is acknowledged. */
static void destroy_meanwhile(void *(*destroy)(void *), void *object, enum ibv_event_type type)
{
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(context, &event) == 0 && event.event_type == type);
    CHECK(type == IBV_EVENT_SRQ_LIMIT_REACHED ? event.element.srq == object
                                              : event.element.qp == object);
    pthread_t thread;
    destroyed = 0;
    CHECK(pthread_create(&thread, NULL, destroy, object) == 0);
    usleep(50000);
    CHECK(!destroyed);
    ibv_ack_async_event(&event);
    CHECK(pthread_join(thread, NULL) == 0 && destroyed);
}

static void objects_live_until_their_events_are_acknowledged(void)
{
    struct ibv_srq *srq = create_srq();
    struct ibv_qp *qp = create_qp(srq);
    fail(qp);
    destroy_meanwhile(destroy_qp, qp, IBV_EVENT_QP_LAST_WQE_REACHED);
    reach_limit(srq);
    destroy_meanwhile(destroy_srq, srq, IBV_EVENT_SRQ_LIMIT_REACHED);
}

static void objects_take_events_along_that_nobody_took(void)
{
    struct ibv_srq *srq = create_srq();
    struct ibv_qp *qp = create_qp(srq);
    struct pollfd events = {.fd = context->async_fd, .events = POLLIN};
    fail(qp);
    reach_limit(srq);
    CHECK(poll(&events, 1, 0) == 1);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);
    CHECK(poll(&events, 1, 0) == 0);
}

static atomic_int alarms;

static void count_alarm(int signal)
{
    (void)signal;
    alarms++;
}

static void *fail_after_alarm(void *qp)
{
    while (!alarms)
        usleep(1000);
    fail(qp);
    return NULL;
}

/* Starts a thread that fails the queue pair once the alarm has interrupted this thread's wait. */
static pthread_t expect_alarm(struct ibv_qp *qp)
{
    sigset_t alarm_signal;
    pthread_t thread;
    alarms = 0;
    sigemptyset(&alarm_signal);
    sigaddset(&alarm_signal, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarm_signal, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, fail_after_alarm, qp) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarm_signal, NULL) == 0);
    alarm(1);
    return thread;
}

/* A handler of signal() has SA_RESTART. */
static void waits_go_on_after_signals_that_ask_for_it(void)
{
    CHECK(signal(SIGALRM, count_alarm) != SIG_ERR);
    struct ibv_srq *srq = create_srq();
    struct ibv_qp *qp = create_qp(srq);
    struct ibv_async_event event;
    pthread_t thread = expect_alarm(qp);
    CHECK(ibv_get_async_event(context, &event) == 0 && alarms == 1);
    ibv_ack_async_event(&event);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0);

    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *other = cq, *raised;
    void *owner;
    CHECK(channel && (cq = ibv_create_cq(context, 8, NULL, channel, 0)));
    qp = create_qp(NULL);
    struct ibv_recv_wr receive = {.wr_id = 5}, *bad;
    CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && ibv_req_notify_cq(cq, 0) == 0);
    thread = expect_alarm(qp);
    CHECK(ibv_get_cq_event(channel, &raised, &owner) == 0 && raised == cq && alarms == 1);
    ibv_ack_cq_events(cq, 1);
    CHECK(pthread_join(thread, NULL) == 0);

    struct sigaction ends_waits = {.sa_handler = count_alarm};
    CHECK(sigaction(SIGALRM, &ends_waits, NULL) == 0);
    alarm(1);
    CHECK(ibv_get_cq_event(channel, &raised, &owner) == -1 && errno == EINTR);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0);
    cq = other;
}

/* Completions go with the queue pair that they are of. */
static void completions_go_with_their_queue_pair(void)
{
    struct ibv_qp *qp = create_qp(NULL);
    struct ibv_recv_wr recv = {.wr_id = 1}, *bad;
    CHECK(ibv_post_recv(qp, &recv, &bad) == 0);
    fail(qp);
    CHECK(ibv_destroy_qp(qp) == 0);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

static void *wait_for_event(void *channel)
{
    struct ibv_cq *raised;
    void *owner;
    ibv_get_cq_event(channel, &raised, &owner);
    return NULL;
}

/* A thread that waits for a channel's events does not keep the channel. */
static void channels_end_though_a_thread_waits(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(channel);
    struct ibv_cq *of_channel = ibv_create_cq(context, 8, NULL, channel, 0);
    CHECK(of_channel);
    pthread_t waiter;
    CHECK(pthread_create(&waiter, NULL, wait_for_event, channel) == 0);
    usleep(20000);
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    CHECK(ibv_destroy_cq(of_channel) == 0 && ibv_destroy_comp_channel(channel) == 0);
    pthread_detach(waiter);
}

/* Each event of a channel is an edge for epoll. */
static void each_event_is_an_edge(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(channel);
    struct ibv_cq *own = cq, *raised;
    void *owner;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int epoll = epoll_create1(0);
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &event) == 0);
    struct ibv_cq *queues[2];
    struct ibv_qp *qps[2];
    for (int i = 0; i < 2; i++) {
        queues[i] = cq = ibv_create_cq(context, 8, NULL, channel, 0);
        CHECK(cq && ibv_req_notify_cq(cq, 0) == 0);
        qps[i] = create_qp(NULL);
        struct ibv_recv_wr recv = {.wr_id = 1}, *bad;
        CHECK(ibv_post_recv(qps[i], &recv, &bad) == 0);
        fail(qps[i]);
        CHECK(epoll_wait(epoll, &event, 1, 10000) == 1);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(ibv_get_cq_event(channel, &raised, &owner) == 0);
        ibv_ack_cq_events(raised, 1);
    }
    CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(ibv_destroy_qp(qps[i]) == 0 && ibv_destroy_cq(queues[i]) == 0);
    CHECK(close(epoll) == 0 && ibv_destroy_comp_channel(channel) == 0);
    cq = own;
}

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0);
    context = ibv_open_device(list[count - 1]);
    ibv_free_device_list(list);
    CHECK(context && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 8, NULL, NULL, 0)));
    objects_live_until_their_events_are_acknowledged();
    objects_take_events_along_that_nobody_took();
    waits_go_on_after_signals_that_ask_for_it();
    completions_go_with_their_queue_pair();
    channels_end_though_a_thread_waits();
    each_event_is_an_edge();
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    puts("all as promised");
    return 0;
}
