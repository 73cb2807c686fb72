/* What the kernel alone takes for a datagram and its answer over the loopback interface, by how an end waits for it: the floor of
 * pn-fig14a, and what io_uring would change of it (docs/experiments.md).
 *
 *     cc -O2 -o /tmp/ping_pong crates/bench/c/ping_pong.c
 *     /tmp/ping_pong look|epoll|uring-wait|uring-look|uring-multishot|uring-memory ROUNDS [BYTES THERE] [BYTES BACK]
 *
 * Each end is a process on a core of its own. CPU is both processes', for each datagram and its answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Receives until something comes; asks epoll first and sleeps; one io_uring_enter that sends and waits; one that sends, then others
 * that look; the same with a receive that stays armed; looks at the ring's memory, no system call. */
enum mode { LOOK, EPOLL, URING_WAIT, URING_LOOK, URING_MULTISHOT, URING_MEMORY, MODES };
static const char *const names[MODES] = {"look", "epoll", "uring-wait", "uring-look", "uring-multishot", "uring-memory"};

#define BUFFERS 8
#define BUFFER_BYTES 65536
static char buffers[BUFFERS][BUFFER_BYTES];

static struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    struct io_uring_buf_ring *free;
} r;

static void fail(const char *what) {
    perror(what);
    _exit(1);
}
static void *map(size_t bytes, off_t at) {
    void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r.fd, at);
    if (p == MAP_FAILED)
        fail("mmap");
    return p;
}
static int enter(unsigned submit, unsigned wait) {
    return syscall(SYS_io_uring_enter, r.fd, submit, wait, IORING_ENTER_GETEVENTS, 0, 0);
}
static struct io_uring_sqe *next(int op, int fd) {
    unsigned tail = *r.sq_tail, i = tail & *r.sq_mask;
    r.sq_array[i] = i;
    __atomic_store_n(r.sq_tail, tail + 1, __ATOMIC_RELEASE);
    memset(&r.sqes[i], 0, sizeof r.sqes[i]);
    r.sqes[i].opcode = op;
    r.sqes[i].fd = fd;
    return &r.sqes[i];
}
static void queue_send(int fd, const void *from, unsigned bytes) {
    struct io_uring_sqe *e = next(IORING_OP_SEND, fd);
    e->addr = (unsigned long)from;
    e->len = bytes;
    e->flags = IOSQE_CQE_SKIP_SUCCESS;
}
static void queue_receive(int fd, int multishot) {
    struct io_uring_sqe *e = next(IORING_OP_RECV, fd);
    e->user_data = 1;
    if (multishot) {
        e->ioprio = IORING_RECV_MULTISHOT;
        e->flags = IOSQE_BUFFER_SELECT;
    } else {
        e->addr = (unsigned long)buffers[0];
        e->len = BUFFER_BYTES;
    }
}
static void give_back(int id) {
    unsigned short tail = r.free->tail;
    struct io_uring_buf *b = &r.free->bufs[tail % BUFFERS];
    b->addr = (unsigned long)buffers[id];
    b->len = BUFFER_BYTES;
    b->bid = id;
    __atomic_store_n(&r.free->tail, tail + 1, __ATOMIC_RELEASE);
}
static void begin(enum mode mode, int fd) {
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER};
    if (mode != URING_MEMORY)
        p.flags |= IORING_SETUP_DEFER_TASKRUN;
    if ((r.fd = syscall(SYS_io_uring_setup, 16, &p)) < 0)
        fail("io_uring_setup");
    size_t sq = p.sq_off.array + p.sq_entries * 4, cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *m = map(sq > cq ? sq : cq, IORING_OFF_SQ_RING);
    r.sqes = map(p.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    r.sq_tail = (void *)(m + p.sq_off.tail), r.sq_mask = (void *)(m + p.sq_off.ring_mask);
    r.sq_array = (void *)(m + p.sq_off.array), r.cq_head = (void *)(m + p.cq_off.head);
    r.cq_tail = (void *)(m + p.cq_off.tail), r.cq_mask = (void *)(m + p.cq_off.ring_mask);
    r.cqes = (void *)(m + p.cq_off.cqes);
    if (mode < URING_MULTISHOT)
        return;
    r.free = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    struct io_uring_buf_reg reg = {.ring_addr = (unsigned long)r.free, .ring_entries = BUFFERS};
    if (syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_PBUF_RING, &reg, 1))
        fail("io_uring_register");
    for (int i = 0; i < BUFFERS; i++)
        give_back(i);
    queue_receive(fd, 1);
    enter(1, 0);
}

/* Sends what is to be sent, if anything, and receives one datagram. */
static void turn(enum mode mode, int fd, int epoll, const char *out, unsigned bytes) {
    if (mode < URING_WAIT) {
        if (bytes && send(fd, out, bytes, 0) < 0)
            fail("send");
        struct epoll_event e;
        do {
            if (mode == EPOLL)
                epoll_wait(epoll, &e, 1, -1);
        } while (recv(fd, buffers[0], BUFFER_BYTES, MSG_DONTWAIT) < 0);
        return;
    }
    unsigned wait = mode == URING_WAIT || mode == URING_MULTISHOT, submit = bytes > 0;
    if (bytes)
        queue_send(fd, out, bytes);
    if (mode < URING_MULTISHOT)
        queue_receive(fd, 0), submit++;
    if ((submit || wait) && enter(submit, wait) < 0)
        fail("io_uring_enter");
    unsigned head = *r.cq_head;
    while (head == __atomic_load_n(r.cq_tail, __ATOMIC_ACQUIRE))
        if (mode != URING_MEMORY)
            enter(0, wait);
    struct io_uring_cqe c = r.cqes[head & *r.cq_mask];
    __atomic_store_n(r.cq_head, head + 1, __ATOMIC_RELEASE);
    if (c.res <= 0 || !c.user_data)
        fprintf(stderr, "io_uring: %s\n", strerror(-c.res)), _exit(1);
    if (mode >= URING_MULTISHOT) {
        give_back(c.flags >> IORING_CQE_BUFFER_SHIFT);
        if (!(c.flags & IORING_CQE_F_MORE))
            queue_receive(fd, 1), enter(1, 0);
    }
}

static double seconds(clockid_t of) {
    struct timespec t;
    clock_gettime(of, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
/* The CPU of this end, once the other one has begun; `times` of each turn, if it is the one that begins. */
static double end(enum mode mode, int fd, unsigned bytes, long rounds, double *times) {
    int epoll = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
    if (mode >= URING_WAIT)
        begin(mode, fd);
    char *out = calloc(1, bytes);
    if (!times)
        turn(mode, fd, epoll, out, 0);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < rounds; i++) {
        double from = seconds(CLOCK_MONOTONIC);
        /* The last answer is waited for by nobody at this end. */
        if (!times && i == rounds - 1)
            send(fd, out, bytes, 0);
        else
            turn(mode, fd, epoll, out, bytes);
        if (times)
            times[i] = seconds(CLOCK_MONOTONIC) - from;
    }
    return seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
}

int main(int count, char **args) {
    int mode = 0;
    while (count > 2 && mode < MODES && strcmp(args[1], names[mode]))
        mode++;
    if (count < 3 || mode == MODES) {
        fprintf(stderr, "usage: ping_pong look|epoll|uring-wait|uring-look|uring-multishot|uring-memory ROUNDS [THERE] [BACK]\n");
        return 2;
    }
    long rounds = atol(args[2]);
    unsigned there = count > 3 ? atoi(args[3]) : 4276, back = count > 4 ? atoi(args[4]) : 112;
    int fds[2], result[2];
    struct sockaddr_in at[2];
    for (int i = 0; i < 2; i++) {
        socklen_t len = sizeof at[i];
        at[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
        if (bind(fds[i], (void *)&at[i], len) || getsockname(fds[i], (void *)&at[i], &len))
            fail("bind");
    }
    for (int i = 0; i < 2; i++)
        if (connect(fds[i], (void *)&at[!i], sizeof at[i]))
            fail("connect");
    if (pipe(result))
        fail("pipe");
    pid_t child = fork();
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(child ? 0 : 1, &core);
    sched_setaffinity(0, sizeof core, &core);
    double cpu, *times = calloc(rounds, sizeof *times);
    if (!child) {
        cpu = end(mode, fds[1], back, rounds, 0);
        _exit(write(result[1], &cpu, sizeof cpu) != sizeof cpu);
    }
    usleep(50000);
    double own = end(mode, fds[0], there, rounds, times);
    if (read(result[0], &cpu, sizeof cpu) != sizeof cpu)
        return 1;
    waitpid(child, 0, 0);
    qsort(times, rounds, sizeof *times, ascending);
    printf("%-16s CPU %.2f us (%.2f and %.2f), P50 %.1f us, P99 %.1f us\n", names[mode], (own + cpu) / rounds * 1e6,
           own / rounds * 1e6, cpu / rounds * 1e6, times[rounds / 2] * 1e6, times[rounds * 99 / 100] * 1e6);
    return 0;
}
