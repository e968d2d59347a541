/* A hit from C: processor time by floe_read, floe_get_copy and floe_get.
 *
 *   cargo build --release -p floe-c
 *   cc -O2 -I bindings/c/include bindings/c/bench/reads.c target/release/libfloe_c.a -lm -ldl -o reads
 *   ./reads [ROUNDS [LOOKUPS]]
 *
 * The ways take turns in each round; times are medians, and ratios are to floe_read's.
 */

#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "floe.h"

enum { KEYS = 1000, ROUNDS_MOST = 101, WAYS = 3 };

static const char *const names[WAYS] = {"floe_read", "floe_get_copy", "floe_get"};

static void show(void *context, const void *data, size_t len) {
    (void)len;
    *(unsigned long long *)context += *(const unsigned char *)data;
}

/* Looks a key up and adds the first byte of its value, which is 1, to a sum. */
static void look_up(const floe_cache *cache, int way, unsigned long long key,
                    unsigned long long *sum) {
    char buffer[64];
    size_t len = 0;
    floe_value *value = NULL;
    if (way == 0) {
        floe_read(cache, &key, sizeof key, show, sum);
    } else if (way == 1) {
        if (floe_get_copy(cache, &key, sizeof key, buffer, sizeof buffer, &len) == FLOE_STATUS_OK) {
            show(sum, buffer, len);
        }
    } else if (floe_get(cache, &key, sizeof key, &value) == FLOE_STATUS_OK) {
        show(sum, floe_value_data(value), floe_value_len(value));
        floe_value_release(value);
    }
}

/* Nanoseconds of processor time a lookup. */
static double run(const floe_cache *cache, int way, int lookups) {
    struct timespec begun, ended;
    unsigned long long sum = 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (int at = 0; at < lookups; at++) {
        look_up(cache, way, (unsigned long long)at * 7919 % KEYS, &sum);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
    if (sum != (unsigned long long)lookups) {
        fprintf(stderr, "%s did not find all values\n", names[way]);
        exit(1);
    }
    return ((double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec)) /
           lookups;
}

static int compare(const void *one, const void *other) {
    const double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int count, char **arguments) {
    static double taken[WAYS][ROUNDS_MOST];
    const int rounds = count > 1 ? atoi(arguments[1]) : 3;
    const int lookups = count > 2 ? atoi(arguments[2]) : 20000;
    if (rounds < 1 || rounds > ROUNDS_MOST || lookups < 1) return 2;
    floe_options *options = floe_options_new();
    floe_options_set_capacity(options, 2 * KEYS);
    floe_cache *cache = floe_cache_new(options);
    floe_options_free(options);
    char value[64];
    memset(value, 1, sizeof value);
    for (unsigned long long key = 0; key < KEYS; key++) {
        if (floe_insert(cache, &key, sizeof key, value, sizeof value) != FLOE_STATUS_OK) return 1;
    }
    for (int round = 0; round < rounds; round++) {
        for (int way = 0; way < WAYS; way++) taken[way][round] = run(cache, way, lookups);
    }
    for (int way = 0; way < WAYS; way++) {
        qsort(taken[way], (size_t)rounds, sizeof taken[way][0], compare);
        printf("%-14s %6.1f ns  %5.2f\n", names[way], taken[way][rounds / 2],
               taken[way][rounds / 2] / taken[0][rounds / 2]);
    }
    floe_cache_free(cache);
    return 0;
}
