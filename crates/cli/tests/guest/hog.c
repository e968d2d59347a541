// Writes memory, all pages of it, and compares every STEP-th one, for swap is slow to read.
//
//   hog MIB STEP

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

int main(int count, char **words) {
    if (count != 3) return 2;
    size_t pages = (strtoull(words[1], 0, 10) << 20) / PAGE, step = strtoull(words[2], 0, 10);
    uint64_t *memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t page = 0; page < pages; page++) {
        uint64_t *at = memory + page * WORDS;
        at[0] = page;
        at[WORDS - 1] = ~page;
    }
    for (size_t page = 0; page < pages; page += step) {
        uint64_t *at = memory + page * WORDS;
        if (at[0] != page || at[WORDS - 1] != ~page) {
            fprintf(stderr, "hog: page %zu has changed\n", page);
            return 1;
        }
    }
    return 0;
}
