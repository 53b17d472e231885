/* A library to preload into a broker: measures fdatasync and fsync. `last_sync` returns the end and the duration of the
   calling thread's latest call in nanoseconds (CLOCK_MONOTONIC). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

static __thread int64_t ended, lasted;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

void last_sync(int64_t *end, int64_t *duration)
{
    *end = ended;
    *duration = lasted;
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int64_t began = now();
    int result = real(fd);
    ended = now();
    lasted = ended - began;
    return result;
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int64_t began = now();
    int result = real(fd);
    ended = now();
    lasted = ended - began;
    return result;
}
