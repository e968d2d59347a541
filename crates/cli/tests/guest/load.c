// Reads and writes files at random with several processes, compares what it reads, and tells of requests that waited.
//
//   load FOLDER PROCESSES    ends well when FOLDER/enough is there
//
// Each line of its output is the time in milliseconds of a request that took more than 100 of them.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH (4 << 20)
#define PAGE 4096
#define PAGES (LENGTH / PAGE)
#define MOST 16 // pages of a request
#define SLOW 100

static unsigned char wanted[LENGTH];
static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % below;
}

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

static int failed(const char *what, uint32_t page) {
    fprintf(stderr, "load: %s of page %u: %s\n", what, page, strerror(errno));
    return 1;
}

static int work(const char *folder, int number) {
    char path[256], enough[256];
    unsigned char *bytes = aligned_alloc(PAGE, MOST * PAGE);
    snprintf(path, sizeof path, "%s/load%d", folder, number);
    snprintf(enough, sizeof enough, "%s/enough", folder);
    int file = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (!bytes || file < 0 || posix_fallocate(file, 0, LENGTH)) return failed("make", 0);
    state = 0x9e3779b97f4a7c15 + number;
    for (uint32_t round = 0; round % 32 || access(enough, F_OK); round++) {
        uint32_t pages = 1 + draw(MOST), from = draw(PAGES - pages + 1), kind = draw(8);
        size_t length = pages * PAGE, at = (size_t)from * PAGE;
        int64_t begun = milliseconds();
        if (kind == 0) {
            if (fdatasync(file)) return failed("fdatasync", from);
        } else if (kind < 4) {
            if (pread(file, bytes, length, at) != (ssize_t)length) return failed("read", from);
            errno = EILSEQ;
            if (memcmp(bytes, wanted + at, length)) return failed("content", from);
        } else {
            memset(bytes, draw(256), length);
            memcpy(bytes, &round, sizeof round);
            memcpy(wanted + at, bytes, length);
            if (pwrite(file, bytes, length, at) != (ssize_t)length) return failed("write", from);
        }
        int64_t took = milliseconds() - begun;
        if (took > SLOW) {
            printf("%lld\n", (long long)took);
            fflush(stdout);
        }
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    int processes = atoi(arguments[2]), status, bad = 0;
    for (int number = 0; number < processes; number++)
        if (fork() == 0) return work(arguments[1], number);
    while (wait(&status) > 0) bad |= status;
    return bad != 0;
}
