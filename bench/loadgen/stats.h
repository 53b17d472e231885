/* Clocks, latency histograms, and the kernel's statistics of a process. */
#ifndef STATS_H
#define STATS_H

#include <stdint.h>
#include <stdio.h>

/* Monotonic nanoseconds; comparable between processes of one machine. */
uint64_t now_ns(void);

/* A histogram of nanoseconds in buckets of 1/32 of a power of two: about 3 % of resolution at any magnitude. */
#define HIST_SUB 32
#define HIST_BUCKETS (64 * HIST_SUB)
struct hist {
    uint64_t count, max;
    uint64_t bucket[HIST_BUCKETS];
};

void hist_reset(struct hist *h);
void hist_add(struct hist *h, uint64_t ns);
/* The quantile of this fraction in nanoseconds; 0 if empty. */
uint64_t hist_quantile(const struct hist *h, double fraction);
/* {"p50": .., "p90": .., "p99": .., "p999": .., "max": ..} in microseconds. */
void hist_json(const struct hist *h, FILE *out);

struct usage {
    double cpu;       /* seconds, user and system, all threads */
    long rss_kb, peak_kb;
};

/* Reads /proc; pid 0 is this process. All zeros if the process does not exist. */
struct usage usage_of(int pid);

#endif
