/* The machine's own latency: an echo between two processes over a socket pair, at the rate of a load. The latency beyond
   it is the broker's. */
#include "load.h"
#include "stats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* 0 if the other end is closed. */
static int read_all(int fd, uint8_t *to, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, to + done, size - done, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        done += (size_t)n;
    }
    return 1;
}

static int write_all(int fd, const uint8_t *from, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, from + done, size - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        done += (size_t)n;
    }
    return 1;
}

static void sleep_until(uint64_t ns)
{
    struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

void load_floor(const struct load *load)
{
    static struct hist echoes;
    int ends[2];
    uint8_t *body = calloc(1, load->size);
    if (!body || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        die("cannot create a socket pair: %s", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        die("cannot fork: %s", strerror(errno));
    if (child == 0) {
        close(ends[0]);
        while (read_all(ends[1], body, load->size) && write_all(ends[1], body, load->size)) {
        }
        _exit(0);
    }
    close(ends[1]);
    uint64_t skipped = load->messages ? 0 : (uint64_t)(load->rate * load->warmup);
    uint64_t count = load->messages ? load->messages : (uint64_t)(load->rate * load->seconds);
    uint64_t started = now_ns(), begin = started;
    for (uint64_t n = 1; n <= skipped + count; n++) {
        /* Counted from the due time, as in loads at a rate: late wake-ups are part of the machine's latency. */
        uint64_t due = started + (uint64_t)((double)n * 1e9 / load->rate);
        sleep_until(due);
        if (!write_all(ends[0], body, load->size) || !read_all(ends[0], body, load->size))
            die("the echo process has ended");
        if (n > skipped)
            hist_add(&echoes, now_ns() - due);
        else
            begin = now_ns();
    }
    printf("{\"seconds\": %.3f, \"messages\": %llu, \"latency_us\": ", (double)(now_ns() - begin) * 1e-9,
           (unsigned long long)count);
    hist_json(&echoes, stdout);
    printf("}\n");
    close(ends[0]);
    waitpid(child, NULL, 0);
    free(body);
}
