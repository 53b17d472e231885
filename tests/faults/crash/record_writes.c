/* A library to preload: records what a process does to the files below one directory, so that a power cut can be replayed.
 *
 * RECORD_DIR  the directory; RECORD_LOG  the file that the records are appended to.
 * A record: one octet of operation, three of padding, four octets of path length, eight of offset, eight of data length
 * (all little endian), the path, the data.
 *   O open with truncation or creation   W write   T truncate to `offset`   S sync   U unlink   R rename (data: new path)
 * What is written by a memory map is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FD 4096

static char *paths[MAX_FD];
static int log_fd = -1;
static char directory[PATH_MAX];
static size_t directory_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int real_open_file(const char *path, int flags, mode_t mode) {
    REAL(int, open64, const char *, int, ...);
    return real_open64(path, flags, mode);
}

static ssize_t real_writev_file(int fd, const struct iovec *pieces, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    return real_writev(fd, pieces, count);
}

__attribute__((constructor)) static void start(void) {
    const char *log = getenv("RECORD_LOG"), *dir = getenv("RECORD_DIR");
    if (!log || !dir || !realpath(dir, directory)) return;
    directory_length = strlen(directory);
    log_fd = real_open_file(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void record(char operation, const char *path, uint64_t offset, const void *data, uint64_t length) {
    if (log_fd < 0) return;
    struct __attribute__((packed)) {
        char operation, padding[3];
        uint32_t path_length;
        uint64_t offset, length;
    } head = {operation, {0}, (uint32_t)strlen(path), offset, length};
    struct iovec pieces[3] = {
        {&head, sizeof head}, {(void *)path, head.path_length}, {(void *)data, (size_t)length}};
    if (real_writev_file(log_fd, pieces, 3) != (ssize_t)(sizeof head + head.path_length + length)) abort();
}

static int ours(const char *path, char *full) {
    if (log_fd < 0) return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
    } else {
        char here[PATH_MAX / 2];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(full, PATH_MAX, "%s/%s", here, path);
    }
    return strncmp(full, directory, directory_length) == 0 && full[directory_length] == '/';
}

static void opened(int fd, const char *path, int flags, int existed) {
    char full[PATH_MAX];
    if (fd < 0 || fd >= MAX_FD || (flags & O_ACCMODE) == O_RDONLY || !ours(path, full)) return;
    pthread_mutex_lock(&lock);
    free(paths[fd]);
    paths[fd] = strdup(full);
    if (!existed || (flags & O_TRUNC)) record('O', full, 0, "", 0);
    pthread_mutex_unlock(&lock);
}

static int open_recorded(const char *path, int flags, mode_t mode) {
    int existed = access(path, F_OK) == 0;
    int fd = real_open_file(path, flags, mode);
    opened(fd, path, flags, existed);
    return fd;
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list arguments; \
        va_start(arguments, flags); \
        mode = va_arg(arguments, mode_t); \
        va_end(arguments); \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags);
    return open_recorded(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags);
    return open_recorded(path, flags, mode);
}

int close(int fd) {
    REAL(int, close, int);
    if (fd >= 0 && fd < MAX_FD && paths[fd]) {
        pthread_mutex_lock(&lock);
        free(paths[fd]);
        paths[fd] = NULL;
        pthread_mutex_unlock(&lock);
    }
    return real_close(fd);
}

/* The lock is held over operation and record, so that their orders agree. */
#define RECORDED(fd, call, on_success) \
    if (fd < 0 || fd >= MAX_FD || !paths[fd]) return call; \
    pthread_mutex_lock(&lock); \
    __typeof__(call) result = call; \
    if (result >= 0) { on_success; } \
    pthread_mutex_unlock(&lock); \
    return result

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    RECORDED(fd, real_pwrite(fd, data, length, offset), record('W', paths[fd], offset, data, result));
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    RECORDED(fd, real_pwrite64(fd, data, length, offset), record('W', paths[fd], offset, data, result));
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(ssize_t, write, int, const void *, size_t);
    RECORDED(fd, real_write(fd, data, length),
             record('W', paths[fd], lseek(fd, 0, SEEK_CUR) - result, data, result));
}

int ftruncate(int fd, off_t length) {
    REAL(int, ftruncate, int, off_t);
    RECORDED(fd, real_ftruncate(fd, length), record('T', paths[fd], length, "", 0));
}

int ftruncate64(int fd, off64_t length) {
    REAL(int, ftruncate64, int, off64_t);
    RECORDED(fd, real_ftruncate64(fd, length), record('T', paths[fd], length, "", 0));
}

int fsync(int fd) {
    REAL(int, fsync, int);
    RECORDED(fd, real_fsync(fd), record('S', paths[fd], 0, "", 0));
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    RECORDED(fd, real_fdatasync(fd), record('S', paths[fd], 0, "", 0));
}

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    char full[PATH_MAX];
    int result = real_unlink(path);
    if (result == 0 && ours(path, full)) {
        pthread_mutex_lock(&lock);
        record('U', full, 0, "", 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    char full[PATH_MAX], full_to[PATH_MAX];
    int result = real_rename(from, to);
    if (result == 0 && ours(from, full) && ours(to, full_to)) {
        pthread_mutex_lock(&lock);
        record('R', full, 0, full_to, strlen(full_to));
        pthread_mutex_unlock(&lock);
    }
    return result;
}
