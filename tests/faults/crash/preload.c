/* A library to preload: records what processes do to the files below one directory, so that a power cut can be replayed, and
 * makes chosen system calls fail.
 *
 * RECORD_DIR   the directory
 * RECORD_LOG   the file to append records to; without it nothing is recorded
 * FAULT_AT     the number of the first failing call, from 1; FAULT_COUNT the number of failing calls (1)
 * FAULT_ERRNO  their error; 0: writes are short, syncs take FAULT_SLEEP_US microseconds longer
 * FAULT_CALLS  the letters of the calls that are counted: o open, w write, t truncate and allocate, s sync, u unlink and
 *              rmdir, r rename and link, k mkdir, p read (default: all but p)
 *
 * A record: one byte of operation, three of padding, four bytes of path length, eight each of inode, offset and data length
 * (little endian), the path, the data.
 *   C create   W write   T truncate to `offset`   S fsync   D fdatasync   Y fsync of a directory
 *   U unlink   R rename (data: the new path)   L link (data: the new path)   K mkdir   X rmdir
 * Writes through a memory map and files without a name are not recorded.
 *
 * RECORD_GATE  a file that is locked (flock, shared) during each operation and its record: a kill under the
 *              exclusive lock leaves no operation without a record
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536

struct tracked {
    char *directory; /* its path if it is a directory */
    uint64_t inode;  /* 0: not tracked */
};

static struct tracked files[MAX_FD];
static int log_fd = -1, gate_fd = -1;
static char root[PATH_MAX];
static size_t root_length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void enter(void) {
    pthread_mutex_lock(&lock);
    if (gate_fd >= 0) flock(gate_fd, LOCK_SH);
}

static void leave(void) {
    if (gate_fd >= 0) flock(gate_fd, LOCK_UN);
    pthread_mutex_unlock(&lock);
}

static long fault_at, fault_count = 1, calls;
static int fault_errno;
static long fault_sleep_us = 200000;
static char fault_letters[16] = "owtsurk";
static char last_fault[64];

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int real_open_file(int at, const char *path, int flags, mode_t mode) {
    REAL(int, openat64, int, const char *, int, ...);
    return real_openat64(at, path, flags, mode);
}

static ssize_t real_writev_file(int fd, const struct iovec *pieces, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    return real_writev(fd, pieces, count);
}

static ssize_t real_write_file(int fd, const void *data, size_t length) {
    REAL(ssize_t, write, int, const void *, size_t);
    return real_write(fd, data, length);
}

/* For a program that loads the library itself: the directory, and the next fault. Both reset the count of calls. */
void fault_directory(const char *path) {
    if (!realpath(path, root)) root[0] = 0;
    root_length = strlen(root);
    calls = 0;
}

void fault_arm(long at, long count, int number, long sleep_us, const char *letters) {
    pthread_mutex_lock(&lock);
    fault_at = at;
    fault_count = count;
    fault_errno = number;
    fault_sleep_us = sleep_us;
    snprintf(fault_letters, sizeof fault_letters, "%s", letters);
    last_fault[0] = 0;
    calls = 0;
    pthread_mutex_unlock(&lock);
}

long fault_calls(void) { return calls; }

const char *fault_last(void) { return last_fault; }

static long number_of(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

__attribute__((constructor)) static void start(void) {
    const char *log = getenv("RECORD_LOG"), *directory = getenv("RECORD_DIR"), *letters = getenv("FAULT_CALLS"),
               *gate = getenv("RECORD_GATE");
    if (!directory || !realpath(directory, root)) return;
    root_length = strlen(root);
    if (log) log_fd = real_open_file(AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (gate) gate_fd = real_open_file(AT_FDCWD, gate, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    fault_at = number_of("FAULT_AT", 0);
    fault_count = number_of("FAULT_COUNT", 1);
    fault_errno = (int)number_of("FAULT_ERRNO", 0);
    fault_sleep_us = number_of("FAULT_SLEEP_US", fault_sleep_us);
    if (letters) snprintf(fault_letters, sizeof fault_letters, "%s", letters);
}

/* Whether this call fails. Call without the lock. */
static int fails(char letter, const char *name) {
    if (!strchr(fault_letters, letter)) return 0;
    long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (!fault_at || number < fault_at || number >= fault_at + fault_count) return 0;
    if (number == fault_at) {
        snprintf(last_fault, sizeof last_fault, "%s", name);
        char text[96];
        int length = snprintf(text, sizeof text, "fault: call %ld, %s, errno %d\n", number, name, fault_errno);
        if (getenv("FAULT_SAYS") && real_write_file(2, text, (size_t)length) < 0) abort();
    }
    return 1;
}

#define FAIL_IF(letter, name) \
    if (fails(letter, name) && fault_errno) { \
        errno = fault_errno; \
        return -1; \
    }

static void record(char operation, const char *path, uint64_t inode, uint64_t offset, const void *data, uint64_t length) {
    if (log_fd < 0) return;
    struct __attribute__((packed)) {
        char operation, padding[3];
        uint32_t path_length;
        uint64_t inode, offset, length;
    } head = {operation, {0}, (uint32_t)strlen(path), inode, offset, length};
    struct iovec pieces[3] = {{&head, sizeof head}, {(void *)path, head.path_length}, {(void *)data, (size_t)length}};
    int kept = errno;
    if (real_writev_file(log_fd, pieces, 3) != (ssize_t)(sizeof head + head.path_length + length)) abort();
    errno = kept;
}

/* The absolute path, and whether it is below the directory. */
static int ours(int at, const char *path, char *full) {
    if (!root_length) return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
    } else {
        char here[PATH_MAX / 2], name[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", at);
        if (at == AT_FDCWD) {
            if (!getcwd(here, sizeof here)) return 0;
        } else {
            ssize_t length = readlink(name, here, sizeof here - 1);
            if (length < 0) return 0;
            here[length] = 0;
        }
        snprintf(full, PATH_MAX, "%s/%s", here, path);
    }
    return strncmp(full, root, root_length) == 0 && (full[root_length] == '/' || full[root_length] == 0);
}

static uint64_t inode_at(const char *path) {
    struct stat found;
    return stat(path, &found) ? 0 : (uint64_t)found.st_ino;
}

static int open_recorded(int at, const char *path, int flags, mode_t mode, const char *name) {
    char full[PATH_MAX];
    if (!ours(at, path, full) || (flags & O_TMPFILE) == O_TMPFILE) return real_open_file(at, path, flags, mode);
    FAIL_IF('o', name);
    enter();
    int existed = access(full, F_OK) == 0;
    int fd = real_open_file(at, path, flags, mode);
    struct stat found;
    if (fd >= 0 && fd < MAX_FD && fstat(fd, &found) == 0) {
        struct tracked *file = &files[fd];
        free(file->directory);
        file->directory = S_ISDIR(found.st_mode) ? strdup(full) : NULL;
        file->inode = (uint64_t)found.st_ino;
        if (!existed) record('C', full, file->inode, 0, "", 0);
        else if (flags & O_TRUNC) record('T', "", file->inode, 0, "", 0);
    }
    leave();
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
    return open_recorded(AT_FDCWD, path, flags, mode, "open");
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags);
    return open_recorded(AT_FDCWD, path, flags, mode, "open");
}

int openat(int at, const char *path, int flags, ...) {
    MODE_OF(flags);
    return open_recorded(at, path, flags, mode, "openat");
}

int openat64(int at, const char *path, int flags, ...) {
    MODE_OF(flags);
    return open_recorded(at, path, flags, mode, "openat");
}

int close(int fd) {
    REAL(int, close, int);
    if (fd >= 0 && fd < MAX_FD && files[fd].inode) {
        enter();
        free(files[fd].directory);
        files[fd].directory = NULL;
        files[fd].inode = 0;
        leave();
    }
    return real_close(fd);
}

#define UNTRACKED(fd) (fd < 0 || fd >= MAX_FD || !files[fd].inode)

/* The lock covers operation and record, so that their orders agree. */
#define RECORDED(call, on_success) \
    enter(); \
    __typeof__(call) result = call; \
    if (result >= 0) { on_success; } \
    leave(); \
    return result

#define WRITTEN(fd, name, call, offset_of) \
    if (UNTRACKED(fd)) return call; \
    if (fails('w', name)) { \
        if (fault_errno) { \
            errno = fault_errno; \
            return -1; \
        } \
        if (length > 1) length /= 2; \
    } \
    RECORDED(call, record('W', "", files[fd].inode, (uint64_t)(offset_of), data, (uint64_t)result))

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    WRITTEN(fd, "pwrite", real_pwrite(fd, data, length, offset), offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    WRITTEN(fd, "pwrite", real_pwrite64(fd, data, length, offset), offset);
}

ssize_t write(int fd, const void *data, size_t length) {
    WRITTEN(fd, "write", real_write_file(fd, data, length), lseek(fd, 0, SEEK_CUR) - result);
}

/* The pieces one by one: a short write of the first is a short write of all. */
ssize_t writev(int fd, const struct iovec *pieces, int count) {
    if (UNTRACKED(fd)) return real_writev_file(fd, pieces, count);
    ssize_t total = 0;
    for (int number = 0; number < count; number++) {
        if (!pieces[number].iov_len) continue;
        ssize_t written = write(fd, pieces[number].iov_base, pieces[number].iov_len);
        if (written < 0) return total ? total : -1;
        total += written;
        if ((size_t)written < pieces[number].iov_len) break;
    }
    return total;
}

#define READ(fd, call) \
    if (!UNTRACKED(fd)) { FAIL_IF('p', "read"); } \
    return call

ssize_t pread(int fd, void *data, size_t length, off_t offset) {
    REAL(ssize_t, pread, int, void *, size_t, off_t);
    READ(fd, real_pread(fd, data, length, offset));
}

ssize_t pread64(int fd, void *data, size_t length, off64_t offset) {
    REAL(ssize_t, pread64, int, void *, size_t, off64_t);
    READ(fd, real_pread64(fd, data, length, offset));
}

ssize_t read(int fd, void *data, size_t length) {
    REAL(ssize_t, read, int, void *, size_t);
    READ(fd, real_read(fd, data, length));
}

#define TRUNCATED(type, name) \
    int name(int fd, type length) { \
        REAL(int, name, int, type); \
        if (UNTRACKED(fd)) return real_##name(fd, length); \
        FAIL_IF('t', #name); \
        RECORDED(real_##name(fd, length), record('T', "", files[fd].inode, (uint64_t)length, "", 0)); \
    }

TRUNCATED(off_t, ftruncate)
TRUNCATED(off64_t, ftruncate64)

#define TRUNCATED_PATH(type, name) \
    int name(const char *path, type length) { \
        REAL(int, name, const char *, type); \
        char full[PATH_MAX]; \
        if (!ours(AT_FDCWD, path, full)) return real_##name(path, length); \
        FAIL_IF('t', #name); \
        RECORDED(real_##name(path, length), record('T', "", inode_at(full), (uint64_t)length, "", 0)); \
    }

TRUNCATED_PATH(off_t, truncate)
TRUNCATED_PATH(off64_t, truncate64)

/* These return the error. */
#define ALLOCATED(type, name) \
    int name(int fd, type offset, type length) { \
        REAL(int, name, int, type, type); \
        if (UNTRACKED(fd)) return real_##name(fd, offset, length); \
        if (fails('t', #name) && fault_errno) return fault_errno; \
        enter(); \
        int result = real_##name(fd, offset, length); \
        struct stat found; \
        if (!result && !fstat(fd, &found)) record('T', "", files[fd].inode, (uint64_t)found.st_size, "", 0); \
        leave(); \
        return result; \
    }

ALLOCATED(off_t, posix_fallocate)
ALLOCATED(off64_t, posix_fallocate64)

#define SYNCED(name, letter) \
    int name(int fd) { \
        REAL(int, name, int); \
        if (UNTRACKED(fd)) return real_##name(fd); \
        if (fails('s', #name)) { \
            if (fault_errno) { \
                errno = fault_errno; \
                return -1; \
            } \
            struct timespec time = {fault_sleep_us / 1000000, fault_sleep_us % 1000000 * 1000}; \
            nanosleep(&time, NULL); \
        } \
        RECORDED(real_##name(fd), \
                 if (files[fd].directory) record('Y', files[fd].directory, files[fd].inode, 0, "", 0); \
                 else record(letter, "", files[fd].inode, 0, "", 0)); \
    }

SYNCED(fsync, 'S')
SYNCED(fdatasync, 'D')

static int unlink_recorded(int at, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    char full[PATH_MAX];
    if (!ours(at, path, full)) return real_unlinkat(at, path, flags);
    FAIL_IF('u', flags & AT_REMOVEDIR ? "rmdir" : "unlink");
    RECORDED(real_unlinkat(at, path, flags), record(flags & AT_REMOVEDIR ? 'X' : 'U', full, 0, 0, "", 0));
}

int unlink(const char *path) { return unlink_recorded(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return unlink_recorded(at, path, flags); }
int rmdir(const char *path) { return unlink_recorded(AT_FDCWD, path, AT_REMOVEDIR); }

static int make_recorded(int at, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    char full[PATH_MAX];
    if (!ours(at, path, full)) return real_mkdirat(at, path, mode);
    FAIL_IF('k', "mkdir");
    RECORDED(real_mkdirat(at, path, mode), record('K', full, inode_at(full), 0, "", 0));
}

int mkdir(const char *path, mode_t mode) { return make_recorded(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return make_recorded(at, path, mode); }

static int rename_recorded(int from_at, const char *from, int to_at, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    char full[PATH_MAX], full_to[PATH_MAX];
    if (!ours(from_at, from, full) || !ours(to_at, to, full_to)) return real_renameat(from_at, from, to_at, to);
    FAIL_IF('r', "rename");
    RECORDED(real_renameat(from_at, from, to_at, to), record('R', full, 0, 0, full_to, strlen(full_to)));
}

int rename(const char *from, const char *to) { return rename_recorded(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_at, const char *from, int to_at, const char *to) {
    return rename_recorded(from_at, from, to_at, to);
}

static int link_recorded(int from_at, const char *from, int to_at, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    char full[PATH_MAX], full_to[PATH_MAX];
    if (!ours(from_at, from, full) || !ours(to_at, to, full_to)) return real_linkat(from_at, from, to_at, to, flags);
    FAIL_IF('r', "link");
    RECORDED(real_linkat(from_at, from, to_at, to, flags), record('L', full, 0, 0, full_to, strlen(full_to)));
}

int link(const char *from, const char *to) { return link_recorded(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    return link_recorded(from_at, from, to_at, to, flags);
}
