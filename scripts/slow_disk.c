/* Delays every flush of a file by 5 ms (SLOW_DISK_MS), as a slow disk would, and counts the flushes in the 8-byte
 * file SLOW_DISK_COUNT. Files in memory (tmpfs) are neither delayed nor counted. Loaded with LD_PRELOAD by
 * scripts/slow-disk. The true flush is a raw system call, so that the functions below never call themselves. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static struct timespec delay = {0, 5000000};
static uint64_t *count;

__attribute__((constructor)) static void read_settings(void) {
    const char *millis = getenv("SLOW_DISK_MS"), *path = getenv("SLOW_DISK_COUNT");
    if (millis) {
        long wait = strtol(millis, NULL, 10);
        delay = (struct timespec){wait / 1000, wait % 1000 * 1000000};
    }
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    count = map == MAP_FAILED ? NULL : map;
    if (file >= 0)
        close(file);
}

static void wait_for_disk(int file) {
    struct statfs disk;
    if (file >= 0 && !fstatfs(file, &disk) && disk.f_type == TMPFS_MAGIC)
        return;
    if (count)
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    nanosleep(&delay, NULL);
}

int fsync(int file) {
    wait_for_disk(file);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_disk(file);
    return (int)syscall(SYS_fdatasync, file);
}

int syncfs(int file) {
    wait_for_disk(file);
    return (int)syscall(SYS_syncfs, file);
}

int msync(void *from, size_t length, int flags) {
    if (flags & MS_SYNC)
        wait_for_disk(-1);
    return (int)syscall(SYS_msync, from, length, flags);
}

void sync(void) {
    wait_for_disk(-1);
    syscall(SYS_sync);
}
