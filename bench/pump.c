/* The load generator of `bench.processes` in C: one record a request from a thread that costs little beside the broker.
 *
 *   pump DEPTH COUNT ERROR_POSITION < lanes
 *
 * Each line of `lanes` is a connection: an IPv4 address, a port, and the bytes of its request in hexadecimal. COUNT requests are sent in all,
 * up to DEPTH of them unanswered on each connection. Every answer is checked: the two bytes at ERROR_POSITION, counted from its length on, are 0.
 * Prints requests, seconds, CPU seconds of this process, and the p50 and p99 in microseconds. Ends with 1 and a sentence at any error. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LANES_MAX 256
#define DEPTH_MAX 64
#define FRAME_MAX 65536
#define ANSWERS_BYTES 65536
#define NO_ANSWER_MS 60000

struct lane {
    int fd;
    uint8_t *frames; /* DEPTH + 1 copies of the request: whatever is unsent lies in one piece. */
    size_t frame_size;
    size_t sent_of_frame; /* How much of the first unsent request the kernel has. */
    size_t unsent;        /* Bytes that are to be sent. */
    bool waits_to_write;
    uint64_t began_ns[DEPTH_MAX]; /* When each unanswered request was handed over: a ring. */
    unsigned first, waiting;
    uint8_t answers[ANSWERS_BYTES];
    size_t filled;
};

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int connected(const char *host, unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        fail("cannot connect to %s:%u: %s", host, port, strerror(errno));
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

/* One lane from a line of the input, or false behind the last one. */
static bool read_lane(struct lane *lane, unsigned depth)
{
    static char hex[2 * FRAME_MAX + 1];
    char host[64];
    unsigned port, byte;
    int found = scanf("%63s %u %131072s", host, &port, hex);
    if (found == EOF) {
        return false;
    }
    size_t digits = strlen(hex);
    if (found != 3 || digits == 0 || digits % 2 != 0) {
        fail("a lane is an address, a port, and a request in hexadecimal");
    }
    lane->frame_size = digits / 2;
    lane->frames = malloc((depth + 1) * lane->frame_size);
    if (lane->frames == NULL) {
        fail("no memory for %u requests", depth + 1);
    }
    for (size_t at = 0; at < lane->frame_size; at++) {
        if (sscanf(hex + 2 * at, "%2x", &byte) != 1) {
            fail("a request has a character that is not hexadecimal");
        }
        for (unsigned copy = 0; copy <= depth; copy++) {
            lane->frames[copy * lane->frame_size + at] = (uint8_t)byte;
        }
    }
    lane->fd = connected(host, port);
    return true;
}

/* Hands over what is unsent, and has the socket watched for room while the kernel takes no more. */
static void flush(struct lane *lane, int epoll)
{
    while (lane->unsent > 0) {
        ssize_t taken = send(lane->fd, lane->frames + lane->sent_of_frame, lane->unsent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                fail("cannot send: %s", strerror(errno));
            }
            break;
        }
        lane->unsent -= (size_t)taken;
        lane->sent_of_frame = (lane->sent_of_frame + (size_t)taken) % lane->frame_size;
    }
    if ((lane->unsent > 0) != lane->waits_to_write) {
        lane->waits_to_write = lane->unsent > 0;
        struct epoll_event event = {.events = EPOLLIN | (lane->waits_to_write ? EPOLLOUT : 0), .data.ptr = lane};
        epoll_ctl(epoll, EPOLL_CTL_MOD, lane->fd, &event);
    }
}

/* Sends requests until `depth` are unanswered, or all `left` were sent. Returns how many are left. */
static uint64_t fill(struct lane *lane, unsigned depth, uint64_t left, int epoll)
{
    uint64_t now = now_ns();
    while (lane->waiting < depth && left > 0) {
        lane->began_ns[(lane->first + lane->waiting++) % DEPTH_MAX] = now;
        lane->unsent += lane->frame_size;
        left--;
    }
    flush(lane, epoll);
    return left;
}

/* Receives what is there and takes whole answers from it. Returns the latencies of these behind `latencies`. */
static uint32_t *take(struct lane *lane, size_t error_position, uint32_t *latencies)
{
    ssize_t received = recv(lane->fd, lane->answers + lane->filled, ANSWERS_BYTES - lane->filled, MSG_DONTWAIT);
    if (received <= 0) {
        if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
            return latencies;
        }
        fail(received == 0 ? "the broker closed a connection under load" : "cannot receive");
    }
    lane->filled += (size_t)received;
    uint64_t now = now_ns();
    size_t at = 0;
    while (lane->filled - at >= 4) {
        const uint8_t *answer = lane->answers + at;
        size_t size = 4 + ((size_t)answer[0] << 24 | (size_t)answer[1] << 16 | (size_t)answer[2] << 8 | answer[3]);
        if (size > ANSWERS_BYTES || size < error_position + 2) {
            fail("an answer has %zu bytes", size);
        }
        if (size > lane->filled - at) {
            break;
        }
        if (answer[error_position] != 0 || answer[error_position + 1] != 0) {
            fail("a request was answered with error %d", (int16_t)(answer[error_position] << 8 | answer[error_position + 1]));
        }
        if (lane->waiting == 0) {
            fail("an answer came without a request");
        }
        *latencies++ = (uint32_t)(now - lane->began_ns[lane->first]);
        lane->first = (lane->first + 1) % DEPTH_MAX;
        lane->waiting--;
        at += size;
    }
    lane->filled -= at;
    memmove(lane->answers, lane->answers + at, lane->filled);
    return latencies;
}

static int ascending(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

static void run(struct lane *lanes, size_t lane_count, unsigned depth, uint64_t count, size_t error_position)
{
    uint32_t *latencies = malloc(count * sizeof *latencies), *end = latencies;
    int epoll = epoll_create1(0);
    if (latencies == NULL || epoll < 0) {
        fail("no memory for %llu latencies", (unsigned long long)count);
    }
    for (size_t number = 0; number < lane_count; number++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &lanes[number]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, lanes[number].fd, &event);
    }
    uint64_t left = count, began = now_ns();
    for (size_t number = 0; number < lane_count; number++) {
        left = fill(&lanes[number], depth, left, epoll);
    }
    while ((uint64_t)(end - latencies) < count) {
        struct epoll_event events[64];
        int found = epoll_wait(epoll, events, 64, NO_ANSWER_MS);
        if (found == 0) {
            fail("no answer for %d s", NO_ANSWER_MS / 1000);
        }
        for (int number = 0; number < found; number++) {
            struct lane *lane = events[number].data.ptr;
            if (events[number].events & ~(uint32_t)EPOLLOUT) {
                end = take(lane, error_position, end);
            }
            left = fill(lane, depth, left, epoll);
        }
    }
    double seconds = (double)(now_ns() - began) / 1e9;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    qsort(latencies, count, sizeof *latencies, ascending);
    printf("%llu %.6f %.6f %.1f %.1f\n", (unsigned long long)count, seconds, cpu, latencies[count / 2] / 1e3, latencies[count - 1 - count / 100] / 1e3);
}

int main(int argument_count, char **arguments)
{
    if (argument_count != 4) {
        fail("usage: pump DEPTH COUNT ERROR_POSITION < lanes");
    }
    unsigned long depth = strtoul(arguments[1], NULL, 10), count = strtoul(arguments[2], NULL, 10), position = strtoul(arguments[3], NULL, 10);
    if (depth < 1 || depth > DEPTH_MAX || count < 1 || count > 100000000 || position > ANSWERS_BYTES) {
        fail("DEPTH is 1 to %d, COUNT 1 to 100000000, ERROR_POSITION at most %d", DEPTH_MAX, ANSWERS_BYTES);
    }
    struct lane *lanes = calloc(LANES_MAX, sizeof *lanes);
    size_t lane_count = 0;
    if (lanes == NULL) {
        fail("no memory for %d connections", LANES_MAX);
    }
    while (lane_count < LANES_MAX && read_lane(&lanes[lane_count], (unsigned)depth)) {
        lane_count++;
    }
    if (lane_count == 0) {
        fail("no lane was given");
    }
    run(lanes, lane_count, (unsigned)depth, count, position);
    return 0;
}
