// Reads and writes a part of a block device at random, in all sizes from a sector to 1 MiB and past the page cache,
// beside an array, and compares them.
//
//   blocks DEVICE FIRST_MIB MIB STEPS SEED
//
// Blocks that were deallocated may read as anything, so this deallocates nothing.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SECTOR 512
#define LONGEST (1 << 20)

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 20) % below;
}

static void must(int good, const char *what, int step) {
    if (good) return;
    fprintf(stderr, "blocks: %s in step %d: %s\n", what, step, strerror(errno));
    exit(1);
}

static void compare(const unsigned char *found, const unsigned char *wanted, size_t from, size_t length, int step) {
    for (size_t at = 0; at < length; at++)
        if (found[at] != wanted[at]) {
            fprintf(stderr, "blocks: byte %zu is %#x instead of %#x in step %d\n", from + at, found[at], wanted[at], step);
            exit(1);
        }
}

int main(int count, char **words) {
    if (count != 6) return 2;
    uint64_t first = strtoull(words[2], 0, 10) << 20, length = strtoull(words[3], 0, 10) << 20;
    int steps = atoi(words[4]), device = open(words[1], O_RDWR | O_DIRECT);
    must(device >= 0, words[1], 0);
    unsigned char *wanted = calloc(1, length), *bytes = 0;
    must(wanted && !posix_memalign((void **)&bytes, 4096, LONGEST), "memory", 0);
    state = strtoull(words[5], 0, 10) * 0x9E3779B97F4A7C15u | 1;
    uint64_t whole[2] = {first, length};
    must(!ioctl(device, BLKZEROOUT, whole), "zeroing of all", 0);
    for (int step = 1; step <= steps; step++) {
        // A power of two at the first steps, in turn, and then whatever.
        uint32_t most = SECTOR << draw(12), size = step <= 24 ? SECTOR << (step - 1) / 2 : SECTOR * (1 + draw(most / SECTOR));
        uint64_t from = (uint64_t)SECTOR * draw((length - size) / SECTOR + 1);
        switch (step <= 24 ? step % 2 : draw(8)) {
        case 0: case 2: case 4:
            must(pread(device, bytes, size, first + from) == size, "read", step);
            compare(bytes, wanted + from, from, size, step);
            break;
        case 6:
            must(!fdatasync(device), "flush", step);
            break;
        case 7: {
            uint64_t range[2] = {first + from, size};
            must(!ioctl(device, BLKZEROOUT, range), "zeroing", step);
            memset(wanted + from, 0, size);
            break;
        }
        default:
            for (uint32_t at = 0; at < size; at++) bytes[at] = wanted[from + at] = draw(256);
            must(pwrite(device, bytes, size, first + from) == size, "write", step);
        }
    }
    for (uint64_t from = 0; from < length; from += LONGEST) {
        must(pread(device, bytes, LONGEST, first + from) == LONGEST, "read", steps);
        compare(bytes, wanted + from, from, LONGEST, steps);
    }
    return 0;
}
