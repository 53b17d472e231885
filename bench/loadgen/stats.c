#include "stats.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void hist_reset(struct hist *h)
{
    memset(h, 0, sizeof *h);
}

static unsigned bucket_of(uint64_t ns)
{
    if (ns < HIST_SUB)
        return (unsigned)ns;
    unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - 5u;
    return (shift + 1) * HIST_SUB + (unsigned)((ns >> shift) & (HIST_SUB - 1));
}

static uint64_t bucket_end(unsigned bucket)
{
    if (bucket < HIST_SUB)
        return bucket;
    unsigned shift = bucket / HIST_SUB - 1;
    return ((uint64_t)(HIST_SUB + bucket % HIST_SUB + 1) << shift) - 1;
}

void hist_add(struct hist *h, uint64_t ns)
{
    h->bucket[bucket_of(ns)]++;
    h->count++;
    if (ns > h->max)
        h->max = ns;
}

uint64_t hist_quantile(const struct hist *h, double fraction)
{
    uint64_t want = (uint64_t)((double)h->count * fraction), seen = 0;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen > want) {
            uint64_t end = bucket_end(i);
            return end < h->max ? end : h->max;
        }
    }
    return h->max;
}

void hist_json(const struct hist *h, FILE *out)
{
    fprintf(out, "{\"count\": %llu, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}",
            (unsigned long long)h->count, (double)hist_quantile(h, 0.5) / 1e3, (double)hist_quantile(h, 0.9) / 1e3,
            (double)hist_quantile(h, 0.99) / 1e3, (double)hist_quantile(h, 0.999) / 1e3, (double)h->max / 1e3);
}

struct usage usage_of(int pid)
{
    struct usage usage = {0, 0, 0};
    char path[64], line[4096];
    if (pid == 0)
        pid = (int)getpid();
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return usage;
    if (fgets(line, sizeof line, file)) {
        unsigned long user, sys;
        /* The name in parentheses may contain anything, so search the last parenthesis. Fields 14 and 15 are the times. */
        char *rest = strrchr(line, ')');
        if (rest && sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) == 2)
            usage.cpu = (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
    }
    fclose(file);
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    file = fopen(path, "r");
    if (!file)
        return usage;
    while (fgets(line, sizeof line, file)) {
        sscanf(line, "VmRSS: %ld", &usage.rss_kb);
        sscanf(line, "VmHWM: %ld", &usage.peak_kb);
    }
    fclose(file);
    return usage;
}
