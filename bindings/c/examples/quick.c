/* Floe from C: cc quick.c $(pkg-config --cflags --libs floe) */
#include <floe.h>
#include <stdio.h>
#include <string.h>

static void print(void *context, const void *data, size_t len) {
    printf("%s%.*s\n", (const char *)context, (int)len, (const char *)data);
}

int main(void) {
    floe_options *options = floe_options_new();
    floe_options_set_capacity(options, 10000);
    floe_options_set_policy(options, "s3-fifo");
    floe_cache *cache = floe_cache_new(options);
    floe_options_free(options);
    if (cache == NULL) {
        fprintf(stderr, "no cache: %s\n", floe_error_message());
        return 1;
    }

    floe_insert(cache, "key", 3, "value", 5);

    /* The fastest way to read: nothing is locked or copied. */
    floe_read(cache, "key", 3, print, "read: ");

    /* A value that is kept, whatever becomes of the entry. */
    floe_value *value;
    if (floe_get(cache, "key", 3, &value) == FLOE_STATUS_OK) {
        floe_remove(cache, "key", 3);
        printf("kept: %.*s\n", (int)floe_value_len(value), (const char *)floe_value_data(value));
        floe_value_release(value);
    }

    floe_stats stats;
    floe_cache_stats(cache, &stats, sizeof stats);
    printf("hits: %llu\n", (unsigned long long)stats.hits);
    floe_cache_free(cache);
    return 0;
}
