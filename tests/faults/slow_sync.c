/* A library to preload into a broker: syncs wait while the file that SLOW_SYNC names exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_while_slow(void) {
    const char *path = getenv("SLOW_SYNC");
    while (path != NULL && access(path, F_OK) == 0)
        usleep(10000);
}

int fsync(int descriptor) {
    static int (*next)(int);
    if (next == NULL)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_while_slow();
    return next(descriptor);
}

int fdatasync(int descriptor) {
    static int (*next)(int);
    if (next == NULL)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_while_slow();
    return next(descriptor);
}
