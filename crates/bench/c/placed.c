/* What a receiver would save if the kernel's copy put each chunk's data in its place, foretold from the train before (PN3,
 * docs/experiments.md): one read for the CRC is left of copying and checking in one pass.
 *
 *     cc -O2 -msse4.2 -o /tmp/placed crates/bench/c/placed.c
 *     /tmp/placed ROUNDS [DATAGRAM BYTES [PLACES OF 64 KIB, 1: IN THE CACHE]]
 *
 * A process sends trains of datagrams, as segments of one send, over the loopback interface; another, on a core of its own, receives
 * them whole and brings the data into one piece of memory, each chunk checked by CRC32C. Printed: its CPU a train, medians of the
 * ways in turn. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/udp.h>
#include <nmmintrin.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

/* One buffer, copied and checked in one pass; each header and each chunk's data where it belongs, checked there; the same foretold
 * wrongly, by one chunk: moved and checked in one pass. */
enum way { COPIED, PLACED, WRONG, WAYS };
static const char *const names[WAYS] = {"copied and checked", "placed by the kernel", "placed wrongly, moved"};

#define HEAD 76
#define TRAIN 65507
#define BATCH 4 /* trains for each answer */
/* By default more than the caches hold: what is received is new memory. */
#define OUTS 1024
static unsigned used_outs = OUTS;
static char in[TRAIN + 8], outs[OUTS][65536], heads[1024][HEAD];
static struct iovec places[2048];

static void fail(const char *what) {
    perror(what);
    _exit(1);
}

/* Three thirds at once, as the transport's. The three are not put together: a few instructions more for all ways. */
static inline uint64_t checked(const char *from, char *to, size_t n) {
    size_t third = n / 24 * 8;
    uint64_t a = ~0u, b = 0, c = 0, x;
    for (size_t i = 0; i < third; i += 8) {
        memcpy(&x, from + i, 8), a = _mm_crc32_u64(a, x);
        if (to) memcpy(to + i, &x, 8);
        memcpy(&x, from + third + i, 8), b = _mm_crc32_u64(b, x);
        if (to) memcpy(to + third + i, &x, 8);
        memcpy(&x, from + 2 * third + i, 8), c = _mm_crc32_u64(c, x);
        if (to) memcpy(to + 2 * third + i, &x, 8);
    }
    for (size_t i = 3 * third; i < n; i++) {
        c = _mm_crc32_u8(c, from[i]);
        if (to) to[i] = from[i];
    }
    return a ^ b ^ c;
}

static uint64_t take(int fd, enum way way, size_t datagram) {
    static unsigned next;
    size_t data = datagram - HEAD, all = TRAIN / datagram, n = 0;
    char *out = outs[next++ % used_outs];
    char control[64];
    if (way == COPIED)
        places[n++] = (struct iovec){in, TRAIN};
    else
        for (size_t i = 0; i < all; i++) {
            places[n++] = (struct iovec){heads[i], HEAD};
            places[n++] = (struct iovec){(way == WRONG ? in : out) + i * data, data};
        }
    struct msghdr m = {.msg_iov = places, .msg_iovlen = n, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &m, 0);
    if (got != (ssize_t)(all * datagram))
        fprintf(stderr, "%zd bytes instead of a train of %zu\n", got, all * datagram), _exit(1);
    uint64_t sum = 0;
    for (size_t i = 0; i < all; i++) {
        const char *head = way == COPIED ? in + i * datagram : heads[i];
        const char *from = way == COPIED ? head + HEAD : (way == WRONG ? in : out) + i * data;
        sum ^= checked(head, NULL, HEAD) ^ checked(from, way == PLACED ? NULL : out + i * data, data);
    }
    return sum;
}

static double used(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + u.ru_utime.tv_usec + u.ru_stime.tv_usec;
}
static int up(const void *a, const void *b) {
    return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}
static void on_core(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}
static int bound(struct sockaddr_in *at) {
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1, bytes = 16 << 20;
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_UDP, UDP_GRO, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    if (fd < 0 || bind(fd, (struct sockaddr *)at, len) || getsockname(fd, (struct sockaddr *)at, &len))
        fail("socket");
    return fd;
}

int main(int count, char **words) {
    int rounds = count > 1 ? atoi(words[1]) : 0, trains = 4000;
    size_t datagram = count > 2 ? strtoul(words[2], NULL, 10) : 1472;
    if (count > 3)
        used_outs = strtoul(words[3], NULL, 10);
    if (used_outs < 1 || used_outs > OUTS || rounds < 1 || rounds > 1000 || datagram < HEAD + 64 || datagram > TRAIN / 2) {
        fprintf(stderr, "usage: placed ROUNDS (1 to 1000) [DATAGRAM BYTES (140 to 32753) [PLACES (1 to 1024)]]\n");
        return 2;
    }
    struct sockaddr_in here, there;
    int fd = bound(&here), other = bound(&there);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        on_core(0);
        int segment = datagram;
        setsockopt(other, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment);
        static char train[TRAIN];
        char more;
        for (size_t i = 0; i < sizeof train; i++)
            train[i] = i * 7;
        while (recv(other, &more, 1, 0) == 1)
            for (int i = 0; i < BATCH; i++)
                if (sendto(other, train, TRAIN / datagram * datagram, 0, (struct sockaddr *)&here, sizeof here) < 0)
                    fail("send");
        _exit(0);
    }
    on_core(1);
    double (*took)[WAYS] = calloc(rounds, sizeof *took);
    uint64_t sum = 0;
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++) {
            double before = used();
            for (int i = 0; i < trains; i++) {
                if (i % BATCH == 0)
                    sendto(fd, "", 1, 0, (struct sockaddr *)&there, sizeof there);
                sum ^= take(fd, way, datagram);
            }
            took[round][way] = (used() - before) / trains;
        }
    kill(child, SIGKILL);
    printf("(%llx) CPU for a train of %zu bytes in %zu datagrams\n", (unsigned long long)sum, TRAIN / datagram * datagram,
           TRAIN / datagram);
    for (int way = 0; way < WAYS; way++) {
        double v[1000];
        for (int i = 0; i < rounds; i++)
            v[i] = took[i][way];
        qsort(v, rounds, sizeof *v, up);
        printf("%-24s %6.2f us\n", names[way], v[rounds / 2]);
    }
}
