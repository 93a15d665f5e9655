/* Answers getaddrinfo for each host name that has a file in a directory. The file contains the answer: an address,
 * "nowhere" (the name does not exist), or "silence" (no answer). The system answers for all other names. Loaded with
 * LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* The number of further looks at the file while it contains "silence". They are 5 ms apart, so a lookup fails after ten
 * seconds, as with a real resolver. */
#define PATIENCE 2000

static const char *dir;

__attribute__((constructor)) static void find_names(void) {
    dir = getenv("QUORATE_NAMES_DIR");
    if (!dir) {
        static const char words[] = "names shim: no QUORATE_NAMES_DIR\n";
        ssize_t ignored = write(2, words, sizeof words - 1);
        (void)ignored;
        _exit(70); /* a test that needs its own names must not use those of the system */
    }
}

/* Reads the file of a name into `answer`. Returns 0 if there is no such file. */
static int find(const char *name, char *answer, size_t room) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (strchr(name, '/') || name[0] == '.' || length < 0 || (size_t)length >= sizeof path)
        return 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t count = read(file, answer, room - 1);
    close(file);
    answer[count < 0 ? 0 : count] = 0;
    return count > 0;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    lookup *system = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
    char answer[64];
    if (!name || !name[0] || !find(name, answer, sizeof answer)) {
        if (access(dir, F_OK))
            return EAI_NONAME; /* the test has ended, so its names must not reach a real name server */
        return system(name, service, hints, found);
    }
    for (int asked = 0; !strcmp(answer, "silence"); asked++) {
        struct timespec pause = {0, 5000000};
        if (asked == PATIENCE)
            return EAI_AGAIN;
        nanosleep(&pause, NULL);
        if (!find(name, answer, sizeof answer))
            return EAI_NONAME;
    }
    return strcmp(answer, "nowhere") ? system(answer, service, hints, found) : EAI_NONAME;
}
