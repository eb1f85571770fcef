/* What UCX relies on besides the verbs. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static const char *gid_file(const struct ibv_device *device, const char *kind, int gid)
{
    static char path[256];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gid_attrs/%s/%d", device->name,
             kind, gid);
    return path;
}

/* The content of a file, with a NUL behind it. */
static const char *content(const char *path)
{
    static char text[64];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0);
    ssize_t length = read(file, text, sizeof text - 1);
    CHECK(length > 0);
    CHECK(close(file) == 0);
    text[length] = 0;
    return text;
}

static void files_of(const struct ibv_device *device)
{
    char path[300];
    struct stat found;
    snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
    CHECK(access(path, R_OK | W_OK) == 0);
    CHECK(stat(path, &found) == 0 && S_ISCHR(found.st_mode));
    CHECK(strcmp(content(gid_file(device, "types", 0)), "RoCE v2\n") == 0);
    const char *interface = content(gid_file(device, "ndevs", 0));
    CHECK(strlen(interface) > 1 && interface[strlen(interface) - 1] == '\n');
    CHECK(open(gid_file(device, "types", 99), O_RDONLY) == -1 && errno == ENOENT);
}

static void files_that_do_not_exist(void)
{
    const char *volatile nowhere = NULL;
    struct stat found;
    CHECK(access("/dev/infiniband/uverbs999", F_OK) == -1 && errno == ENOENT);
    CHECK(stat("/dev/infiniband/uverbs999", &found) == -1 && errno == ENOENT);
    CHECK(open("/sys/class/infiniband/none/ports/1/gid_attrs/types/0", O_RDONLY) == -1);
    CHECK(errno == ENOENT);
    CHECK(open(nowhere, O_RDONLY) == -1 && errno == EFAULT);
    /* The kernel answers for devices that are not ours: for so long a name with an error of its own. */
    char other[6000] = "/sys/class/infiniband/";
    memset(other + strlen(other), 'x', 5000);
    strcat(other, "/ports/1/gid_attrs/types/0");
    CHECK(open(other, O_RDONLY) == -1 && errno == ENAMETOOLONG);
}

/* The functions stand in front of the C library's for every other file too. */
static void other_files(void)
{
    char path[] = "/tmp/invar-ucx-XXXXXX";
    struct stat found;
    CHECK(mkdtemp(path));
    char file[64];
    snprintf(file, sizeof file, "%s/file", path);
    umask(0);
    int created = open(file, O_CREAT | O_EXCL | O_WRONLY, 0640);
    CHECK(created >= 0 && write(created, "abc", 3) == 3 && close(created) == 0);
    CHECK(stat(file, &found) == 0 && found.st_size == 3 && (found.st_mode & 0777) == 0640);
    CHECK(access(file, R_OK) == 0 && strcmp(content(file), "abc") == 0);
    CHECK(unlink(file) == 0 && access(file, F_OK) == -1 && errno == ENOENT && rmdir(path) == 0);
}

/* UCX arms a queue and sleeps, without a look at what came in between. */
static void completions_that_were_there_before(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *raised;
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
    struct ibv_recv_wr receive = {.wr_id = 5}, *bad;
    CHECK(ibv_post_recv(qp, &receive, &bad) == 0);
    attr.qp_state = IBV_QPS_ERR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);

    struct pollfd events = {.fd = channel->fd, .events = POLLIN};
    CHECK(poll(&events, 1, 0) == 0);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    CHECK(poll(&events, 1, 10000) == 1);
    void *owner;
    CHECK(ibv_get_cq_event(channel, &raised, &owner) == 0 && raised == cq);
    ibv_ack_cq_events(cq, 1);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    CHECK(poll(&events, 1, 0) == 0);

    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0);
}

int main(void)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > 0);
    for (int at = 0; at < count; at++)
        files_of(list[at]);
    files_that_do_not_exist();
    other_files();
    struct ibv_context *context = ibv_open_device(list[count - 1]);
    CHECK(context);
    ibv_free_device_list(list);
    completions_that_were_there_before(context);
    CHECK(ibv_close_device(context) == 0);
    puts("all as promised");
    return 0;
}
