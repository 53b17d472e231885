/* The throughput of a relay without a protocol, or its latency at a rate: messages of the same size over the same sockets.
   A broker's throughput relative to it is the share that its protocol and its queues leave. */
#define _GNU_SOURCE
#include "load.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define INPUT (256 * 1024)

/* Returns the time of message `number` at the rate of the load, 0 without a rate. */
static uint64_t due_of(const struct load *load, uint64_t started, uint64_t number)
{
    return load->rate > 0 ? started + (uint64_t)((double)(number + 1) * 1e9 / load->rate) : 0;
}

static int failed(ssize_t n)
{
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void load_relay(const struct load *load)
{
    static struct hist delivery;
    int in = amqp_connect(&load->broker), out = amqp_connect(&load->broker);
    fcntl(in, F_SETFL, O_NONBLOCK);
    fcntl(out, F_SETFL, O_NONBLOCK);
    size_t size = load->size, len = 0, done = 0, at = 0;
    uint8_t *body = calloc(1, size), *output = malloc(size * load->batch), *input = malloc(INPUT), stamp[8];
    uint64_t published = 0, delivered = 0, from = 0, started = now_ns(), now = started, measured = 0;
    uint64_t begin = started + (uint64_t)(load->warmup * 1e9), end = begin + (uint64_t)(load->seconds * 1e9);
    struct usage mine = usage_of(0), theirs = usage_of(load->watch ? load->watch : -1);
    while (now < end) {
        uint64_t due = due_of(load, started, published);
        for (; done == len && due <= now && published - delivered < load->window;) {
            len = done = 0;
            for (unsigned i = 0; i < load->batch && due <= now && published - delivered < load->window; i++) {
                memcpy(output + len, body, size);
                set64(output + len, due ? due : now);
                len += size;
                due = due_of(load, started, ++published);
            }
            ssize_t n = send(out, output, len, MSG_NOSIGNAL);
            if (failed(n))
                die("sending failed: %s", strerror(errno));
            done = n > 0 ? (size_t)n : 0;
        }
        struct pollfd wait[2] = {{.fd = in, .events = POLLIN}, {.fd = out, .events = done < len ? POLLOUT : 0}};
        uint64_t left = due > now && due - now < 100000000u ? due - now : 100000000u;
        struct timespec span = {0, (long)left};
        ppoll(wait, 2, &span, NULL);
        now = now_ns();
        if (wait[1].revents & POLLOUT) {
            ssize_t n = send(out, output + done, len - done, MSG_NOSIGNAL);
            if (failed(n))
                die("sending failed: %s", strerror(errno));
            done += n > 0 ? (size_t)n : 0;
        }
        if (wait[0].revents) {
            ssize_t n = recv(in, input, INPUT, 0);
            if (failed(n))
                die("the relay closed the connection");
            for (size_t used = 0; n > 0 && used < (size_t)n;) {
                size_t left = (size_t)n - used;
                if (at < sizeof stamp) { /* the time of sending, at the beginning */
                    stamp[at++] = input[used++];
                    continue;
                }
                size_t part = size - at < left ? size - at : left;
                at += part;
                used += part;
                if (at == size) {
                    uint64_t when = get64(stamp);
                    hist_add(&delivery, now > when ? now - when : 0);
                    delivered++;
                    at = 0;
                }
            }
        }
        if (!measured && now >= begin) {
            measured = now;
            from = delivered;
            mine = usage_of(0);
            theirs = usage_of(load->watch ? load->watch : -1);
            hist_reset(&delivery);
        }
    }
    struct usage me = usage_of(0), relay = usage_of(load->watch ? load->watch : -1);
    printf("{\"seconds\": %.6f, \"delivered\": %llu, \"confirmed\": %llu, \"generator_cpu\": %.6f, \"broker_cpu\": %.6f, "
           "\"broker_rss_kb\": %ld, \"latency_us\": ",
           (double)(now - measured) * 1e-9, (unsigned long long)(delivered - from), (unsigned long long)(delivered - from),
           me.cpu - mine.cpu, relay.cpu - theirs.cpu, relay.rss_kb);
    hist_json(&delivery, stdout);
    printf("}\n");
}
