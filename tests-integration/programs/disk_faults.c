/* Lets a call of the C library fail on a file below one folder; by LD_PRELOAD.

   Python and TensorStore reach the disk through these functions, so one injector covers
   both. A program that loads this file with ctypes calls `watch`, does its work, and
   calls `end_watch`, which returns the calls that were made. Only the calls of the
   watched folder are counted. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int watching;
static char folder[4096], wanted[8192];
static int fails_at, fails_on, error_number, seen;
static char *calls;
static size_t num_bytes, capacity;

/* Count the calls below `below`. The call number `nth`, from 1, of those that match
   `pattern` fails with `number`; if `forever`, all later ones fail too. */
void watch(const char *below, const char *pattern, int nth, int forever, int number) {
  pthread_mutex_lock(&lock);
  snprintf(folder, sizeof folder, "%s", below);
  snprintf(wanted, sizeof wanted, "%s", pattern);
  fails_at = nth, fails_on = forever, error_number = number, seen = 0;
  num_bytes = 0, watching = 1;
  pthread_mutex_unlock(&lock);
}

/* Return the calls since `watch`, a line "! FUNCTION PATH" for one that failed and
   "  FUNCTION PATH" for others, with paths relative to the folder. */
const char *end_watch(void) {
  pthread_mutex_lock(&lock);
  watching = 0;
  pthread_mutex_unlock(&lock);
  return num_bytes ? calls : "";
}

/* Return 1, with errno set, if this call must fail. */
static int fails(const char *function, const char *path) {
  size_t length = strlen(folder);
  if (strncmp(path, folder, length) || (path[length] && path[length] != '/')) return 0;
  pthread_mutex_lock(&lock);
  int failed = 0;
  if (watching) {
    char line[8192];
    const char *below = path[length] ? path + length + 1 : ".";
    int size = snprintf(line, sizeof line, "  %s %s\n", function, below);
    line[size - 1] = 0;
    if (fails_at && !fnmatch(wanted, line + 2, 0)) {
      seen++;
      failed = fails_on ? seen >= fails_at : seen == fails_at;
    }
    if (failed) line[0] = '!';
    line[size - 1] = '\n';
    if (num_bytes + size + 1 > capacity) {
      capacity = 2 * (num_bytes + size + 1);
      calls = realloc(calls, capacity);
    }
    memcpy(calls + num_bytes, line, size + 1);
    num_bytes += size;
  }
  int number = error_number;
  pthread_mutex_unlock(&lock);
  if (failed) errno = number;
  return failed;
}

static int fails_fd(const char *function, int fd) {
  if (!watching || fd < 0) return 0;
  int before = errno;
  char name[64], path[4096];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(name, path, sizeof path - 1);
  errno = before;
  if (size < 0) return 0;
  path[size] = 0;
  return fails(function, path);
}

static int fails_at_path(const char *function, int fd, const char *name) {
  if (!watching || !name) return 0;
  if (name[0] == '/') return fails(function, name);
  int before = errno;
  char path[8192];
  if (fd == AT_FDCWD) {
    if (!getcwd(path, 4096)) return 0;
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, 4095);
    if (size < 0) return 0;
    path[size] = 0;
  }
  if (name[0]) {
    strcat(path, "/");
    strncat(path, name, 4000);
  }
  errno = before;
  return fails(function, path);
}

#define REAL(type, name, ...)                                    \
  static type (*real)(__VA_ARGS__);                              \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* A function of a path, of a path in a directory, and of a descriptor. */
#define OF_PATH(type, failed, name, said, params, types, args)   \
  type name params {                                             \
    REAL(type, name, types);                                     \
    if (fails_at_path(said, AT_FDCWD, path)) return failed;      \
    return real args;                                            \
  }
#define AT_PATH(type, failed, name, said, params, types, args)   \
  type name params {                                             \
    REAL(type, name, types);                                     \
    if (fails_at_path(said, fd, path)) return failed;            \
    return real args;                                            \
  }
#define OF_FD(type, failed, name, said, params, types, args)     \
  type name params {                                             \
    REAL(type, name, types);                                     \
    if (fails_fd(said, fd)) return failed;                       \
    return real args;                                            \
  }
#define TYPES(...) __VA_ARGS__

static const char *opened(int flags) {
  if (flags & O_DIRECTORY) return "opendir";
  return (flags & O_ACCMODE) == O_RDONLY ? "open" : "create";
}

#define OPEN(name)                                               \
  int name(const char *path, int flags, ...) {                   \
    va_list more;                                                \
    va_start(more, flags);                                       \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                \
    REAL(int, name, const char *, int, ...);                     \
    if (fails_at_path(opened(flags), AT_FDCWD, path)) return -1; \
    return real(path, flags, mode);                              \
  }
#define OPENAT(name)                                             \
  int name(int fd, const char *path, int flags, ...) {           \
    va_list more;                                                \
    va_start(more, flags);                                       \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                \
    REAL(int, name, int, const char *, int, ...);                \
    if (fails_at_path(opened(flags), fd, path)) return -1;       \
    return real(fd, path, flags, mode);                          \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OF_PATH(FILE *, NULL, fopen, mode[0] == 'r' ? "open" : "create",
        (const char *path, const char *mode), TYPES(const char *, const char *),
        (path, mode))
OF_PATH(FILE *, NULL, fopen64, mode[0] == 'r' ? "open" : "create",
        (const char *path, const char *mode), TYPES(const char *, const char *),
        (path, mode))

OF_FD(ssize_t, -1, read, "read", (int fd, void *to, size_t size),
      TYPES(int, void *, size_t), (fd, to, size))
OF_FD(ssize_t, -1, readv, "read", (int fd, const struct iovec *to, int count),
      TYPES(int, const struct iovec *, int), (fd, to, count))
OF_FD(ssize_t, -1, pread, "read", (int fd, void *to, size_t size, off_t at),
      TYPES(int, void *, size_t, off_t), (fd, to, size, at))
OF_FD(ssize_t, -1, pread64, "read", (int fd, void *to, size_t size, off_t at),
      TYPES(int, void *, size_t, off_t), (fd, to, size, at))
OF_FD(ssize_t, -1, preadv64v2, "read",
      (int fd, const struct iovec *to, int count, off_t at, int flags),
      TYPES(int, const struct iovec *, int, off_t, int), (fd, to, count, at, flags))
OF_FD(ssize_t, -1, write, "write", (int fd, const void *from, size_t size),
      TYPES(int, const void *, size_t), (fd, from, size))
OF_FD(ssize_t, -1, writev, "write", (int fd, const struct iovec *from, int count),
      TYPES(int, const struct iovec *, int), (fd, from, count))
OF_FD(ssize_t, -1, pwrite, "write", (int fd, const void *from, size_t size, off_t at),
      TYPES(int, const void *, size_t, off_t), (fd, from, size, at))
OF_FD(ssize_t, -1, pwrite64, "write",
      (int fd, const void *from, size_t size, off_t at),
      TYPES(int, const void *, size_t, off_t), (fd, from, size, at))
OF_FD(ssize_t, -1, copy_file_range, "read",
      (int fd, off_t *from, int to, off_t *at, size_t size, unsigned flags),
      TYPES(int, off_t *, int, off_t *, size_t, unsigned),
      (fd, from, to, at, size, flags))
OF_FD(int, -1, fsync, "fsync", (int fd), TYPES(int), (fd))
OF_FD(int, -1, fdatasync, "fsync", (int fd), TYPES(int), (fd))
OF_FD(int, -1, ftruncate, "truncate", (int fd, off_t size), TYPES(int, off_t),
      (fd, size))
OF_FD(int, -1, ftruncate64, "truncate", (int fd, off_t size), TYPES(int, off_t),
      (fd, size))
OF_FD(int, -1, flock, "flock", (int fd, int how), TYPES(int, int), (fd, how))
OF_FD(DIR *, NULL, fdopendir, "opendir", (int fd), TYPES(int), (fd))
OF_FD(void *, MAP_FAILED, mmap, "mmap",
      (void *at, size_t size, int how, int flags, int fd, off_t from),
      TYPES(void *, size_t, int, int, int, off_t), (at, size, how, flags, fd, from))
OF_FD(void *, MAP_FAILED, mmap64, "mmap",
      (void *at, size_t size, int how, int flags, int fd, off_t from),
      TYPES(void *, size_t, int, int, int, off_t), (at, size, how, flags, fd, from))

OF_PATH(DIR *, NULL, opendir, "opendir", (const char *path), TYPES(const char *),
        (path))
OF_PATH(int, -1, mkdir, "mkdir", (const char *path, mode_t mode),
        TYPES(const char *, mode_t), (path, mode))
OF_PATH(int, -1, rmdir, "rmdir", (const char *path), TYPES(const char *), (path))
OF_PATH(int, -1, unlink, "unlink", (const char *path), TYPES(const char *), (path))
OF_PATH(int, -1, rename, "rename", (const char *path, const char *to),
        TYPES(const char *, const char *), (path, to))
OF_PATH(int, -1, link, "link", (const char *path, const char *to),
        TYPES(const char *, const char *), (path, to))
OF_PATH(int, -1, truncate, "truncate", (const char *path, off_t size),
        TYPES(const char *, off_t), (path, size))
OF_PATH(int, -1, truncate64, "truncate", (const char *path, off_t size),
        TYPES(const char *, off_t), (path, size))
OF_PATH(int, -1, stat64, "stat", (const char *path, struct stat64 *to),
        TYPES(const char *, struct stat64 *), (path, to))
OF_PATH(int, -1, lstat64, "stat", (const char *path, struct stat64 *to),
        TYPES(const char *, struct stat64 *), (path, to))
OF_FD(int, -1, fstat64, "stat", (int fd, struct stat64 *to),
      TYPES(int, struct stat64 *), (fd, to))
AT_PATH(int, -1, mkdirat, "mkdir", (int fd, const char *path, mode_t mode),
        TYPES(int, const char *, mode_t), (fd, path, mode))
AT_PATH(int, -1, unlinkat, flags &AT_REMOVEDIR ? "rmdir" : "unlink",
        (int fd, const char *path, int flags), TYPES(int, const char *, int),
        (fd, path, flags))
AT_PATH(int, -1, renameat, "rename",
        (int fd, const char *path, int to_fd, const char *to),
        TYPES(int, const char *, int, const char *), (fd, path, to_fd, to))
AT_PATH(int, -1, linkat, "link",
        (int fd, const char *path, int to_fd, const char *to, int flags),
        TYPES(int, const char *, int, const char *, int), (fd, path, to_fd, to, flags))
AT_PATH(int, -1, fstatat64, "stat",
        (int fd, const char *path, struct stat64 *to, int flags),
        TYPES(int, const char *, struct stat64 *, int), (fd, path, to, flags))

/* What programs built against an older C library call. */
int __xstat(int version, const char *path, struct stat *to) {
  REAL(int, __xstat, int, const char *, struct stat *);
  if (fails_at_path("stat", AT_FDCWD, path)) return -1;
  return real(version, path, to);
}
int __lxstat(int version, const char *path, struct stat *to) {
  REAL(int, __lxstat, int, const char *, struct stat *);
  if (fails_at_path("stat", AT_FDCWD, path)) return -1;
  return real(version, path, to);
}
int __fxstat(int version, int fd, struct stat *to) {
  REAL(int, __fxstat, int, int, struct stat *);
  if (fails_fd("stat", fd)) return -1;
  return real(version, fd, to);
}
int __fxstatat(int version, int fd, const char *path, struct stat *to, int flags) {
  REAL(int, __fxstatat, int, int, const char *, struct stat *, int);
  if (fails_at_path("stat", fd, path)) return -1;
  return real(version, fd, path, to, flags);
}
int __openat_2(int fd, const char *path, int flags) {
  REAL(int, __openat_2, int, const char *, int);
  if (fails_at_path(opened(flags), fd, path)) return -1;
  return real(fd, path, flags);
}

/* The end of a directory is a NULL too, so the errors of `readdir` need errno. */
struct dirent *readdir(DIR *of) {
  REAL(struct dirent *, readdir, DIR *);
  return fails_fd("readdir", dirfd(of)) ? NULL : real(of);
}
struct dirent64 *readdir64(DIR *of) {
  REAL(struct dirent64 *, readdir64, DIR *);
  return fails_fd("readdir", dirfd(of)) ? NULL : real(of);
}

/* A network disk reports a failed write when the file is closed, and closes it. */
int close(int fd) {
  REAL(int, close, int);
  int flags = watching ? fcntl(fd, F_GETFL) : -1;
  int wrote = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
  int failed = wrote && fails_fd("close", fd);
  int number = errno, result = real(fd);
  if (!failed) return result;
  errno = number;
  return -1;
}
