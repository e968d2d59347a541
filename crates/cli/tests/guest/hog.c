// Writes memory and compares it, page by page, so many times.
//
//   hog MIB TIMES

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

int main(int count, char **words) {
    if (count != 3) return 2;
    size_t length = strtoull(words[1], 0, 10) << 20;
    uint64_t *memory = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (uint64_t time = 0, times = strtoull(words[2], 0, 10); time < times; time++)
        for (size_t page = 0; page < length / PAGE; page++) {
            uint64_t *at = memory + page * WORDS;
            if (time && (at[0] != page + time - 1 || at[WORDS - 1] != ~page)) {
                fprintf(stderr, "hog: page %zu has changed\n", page);
                return 1;
            }
            at[0] = page + time;
            at[WORDS - 1] = ~page;
        }
    return 0;
}
