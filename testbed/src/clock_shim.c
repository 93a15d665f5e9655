/* Shifts the wall clock of one process by an offset in nanoseconds. The offset is in an 8-byte file, which is mapped
 * into memory, so each call uses the current offset. Loaded with LD_PRELOAD. Monotonic clocks are not shifted, because
 * masters expire keys by the wall clock. The true time comes from raw system calls, so that the functions below never
 * call themselves. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("QUORATE_CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        static const char words[] = "clock shim: cannot map QUORATE_CLOCK_OFFSET_FILE\n";
        ssize_t ignored = write(2, words, sizeof words - 1);
        (void)ignored;
        _exit(70); /* a test that needs a shifted clock must not run with the true clock */
    }
    close(file);
    shift = map;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t nanos = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *shift;
        now->tv_sec = nanos / 1000000000;
        now->tv_nsec = nanos % 1000000000;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *copy) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    if (copy)
        *copy = precise.tv_sec;
    return precise.tv_sec;
}
