/* Objects in memory and on flash from C: cc hybrid.c $(pkg-config --cflags --libs floe) */
#include <floe.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: hybrid PATH\n");
        return 2;
    }
    floe_hybrid_options *options = floe_hybrid_options_new();
    floe_hybrid_options_set_memory(options, 64 << 20);
    floe_hybrid_options_add_flash(options, arguments[1], 256 << 20);
    floe_hybrid_options_set_admission(options, "popularity");
    floe_hybrid *cache = floe_hybrid_open(options);
    floe_hybrid_options_free(options);
    if (cache == NULL) {
        fprintf(stderr, "no cache: %s\n", floe_error_message());
        return 1;
    }

    /* A value, unless a run before has left it. */
    floe_value *value;
    if (floe_hybrid_get(cache, "key", 3, &value) == FLOE_STATUS_OK) {
        printf("found: %.*s\n", (int)floe_value_len(value), (const char *)floe_value_data(value));
        floe_value_release(value);
    } else {
        floe_inserted inserted;
        floe_hybrid_insert(cache, "key", 3, "value", 5, FLOE_PLACEMENT_BOTH, 0, &inserted);
        printf("inserted: %s\n", inserted == FLOE_INSERTED_IN_MEMORY ? "in memory" : "not in memory");
    }

    /* Many keys at once: their reads of flash are in flight together. */
    const floe_bytes keys[] = {{"key", 3}, {"none", 4}};
    floe_hybrid_lookup *lookup;
    if (floe_hybrid_lookup_begin(cache, keys, 2, &lookup) == FLOE_STATUS_OK) {
        floe_hybrid_lookup_wait(lookup);
        for (size_t number = 0; number < 2; number++) {
            const floe_status status = floe_hybrid_lookup_value(lookup, number, &value);
            printf("%s: %s\n", (const char *)keys[number].data, status == FLOE_STATUS_OK ? "there" : "absent");
            floe_value_release(value);
        }
        floe_hybrid_lookup_free(lookup);
    }

    /* Writes what is in memory, so that the next run finds it. */
    if (floe_hybrid_close(cache) != FLOE_STATUS_OK) fprintf(stderr, "%s\n", floe_error_message());
    floe_hybrid_free(cache);
    return 0;
}
