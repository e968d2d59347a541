// Changes a file at random in every way Linux knows, beside an array that is changed the same way, and compares them.
//
//   exercise write FILE SEED    changes the file, compares
//   exercise check FILE SEED    compares the file with what those changes should have made of it
//
// It is compiled in the guest, on the volume that is tested.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH (4 << 20)
#define LONGEST (200 << 10)
#define STEPS 120
#define PAGE 4096

static unsigned char wanted[LENGTH], bytes[LENGTH];
static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % below;
}

static void must(int good, const char *what, int step) {
    if (good) return;
    fprintf(stderr, "exercise: %s in step %d: %s\n", what, step, strerror(errno));
    exit(1);
}

static void compare(int file, int step) {
    must(pread(file, bytes, LENGTH, 0) == LENGTH, "read", step);
    for (int at = 0; at < LENGTH; at++)
        if (bytes[at] != wanted[at]) {
            fprintf(stderr, "exercise: byte %d is %#x instead of %#x after step %d\n", at, bytes[at], wanted[at], step);
            exit(1);
        }
}

// One change of the array, and of the file unless there is none.
static void change(int file, int direct, int step) {
    enum { WRITE, DIRECT, MAPPED, PUNCH, ZERO, CUT, SYNC, KINDS } kind = draw(KINDS);
    uint32_t from = draw(LENGTH), length = 1 + draw(LONGEST), fill = draw(256);
    if (kind == DIRECT) {
        from &= ~(PAGE - 1);
        length = (length + PAGE - 1) & ~(PAGE - 1);
    }
    if (length > LENGTH - from) length = LENGTH - from;
    for (uint32_t at = from; at < from + length; at++) switch (kind) {
        case WRITE: case DIRECT: case MAPPED: wanted[at] = fill + at * 7; break;
        case PUNCH: case ZERO: wanted[at] = 0; break;
        default: break;
    }
    if (kind == CUT) memset(wanted + from, 0, LENGTH - from);
    int again = kind == SYNC && draw(4) == 0; // read it from the volume again
    if (file < 0) return;
    switch (kind) {
    case WRITE:
        must(pwrite(file, wanted + from, length, from) == length, "write", step);
        break;
    case DIRECT: {
        void *aligned = 0;
        must(!posix_memalign(&aligned, PAGE, length), "memory", step);
        memcpy(aligned, wanted + from, length);
        must(pwrite(direct, aligned, length, from) == length, "direct write", step);
        free(aligned);
        break;
    }
    case MAPPED: {
        unsigned char *map = mmap(0, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        must(map != MAP_FAILED, "map", step);
        memcpy(map + from, wanted + from, length);
        must(!msync(map, LENGTH, MS_SYNC) && !munmap(map, LENGTH), "sync of the map", step);
        break;
    }
    case PUNCH:
        must(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, length), "hole", step);
        break;
    case ZERO:
        must(!fallocate(file, FALLOC_FL_ZERO_RANGE, from, length), "zeroing", step);
        break;
    case CUT:
        must(!ftruncate(file, from) && !ftruncate(file, LENGTH), "cut", step);
        break;
    default:
        must(!fsync(file), "sync", step);
        if (again) {
            must(!posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), "advice", step);
            compare(file, step);
        }
        return;
    }
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int writing = !strcmp(words[1], "write");
    int file = open(words[2], writing ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0644);
    must(file >= 0, words[2], 0);
    int direct = open(words[2], writing ? O_WRONLY | O_DIRECT : O_RDONLY);
    must(direct >= 0, "direct I/O", 0);
    if (writing) must(!ftruncate(file, LENGTH), "length", 0);
    state = atoi(words[3]) * 0x9E3779B97F4A7C15u | 1;
    for (int step = 1; step <= STEPS; step++) {
        change(writing ? file : -1, direct, step);
    }
    must(!fsync(file), "sync", STEPS);
    compare(file, STEPS);
    return 0;
}
