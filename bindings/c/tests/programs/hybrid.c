/* The cache in memory and on flash from C. Prints "done" if nothing is wrong. */
#define _GNU_SOURCE /* mkdtemp, strdup, fork */
#include <floe.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, floe_error_message()); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* A call that is refused, with a word of the message. */
#define WRONG(call, word)                          \
    do {                                           \
        CHECK((call) == FLOE_STATUS_INVALID);      \
        CHECK(strstr(floe_error_message(), word)); \
    } while (0)

#define FLASH (32 << 20)

static char folder[256];

static const char *path_of(const char *name) {
    static _Thread_local char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static floe_hybrid_options *described(const char *name) {
    floe_hybrid_options *options = floe_hybrid_options_new();
    CHECK(options != NULL);
    CHECK(floe_hybrid_options_set_memory(options, 8 << 20) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_add_flash(options, path_of(name), FLASH) == FLOE_STATUS_OK);
    return options;
}

static floe_hybrid *opened(floe_hybrid_options *options, floe_opened expected) {
    floe_hybrid *cache = floe_hybrid_open(options);
    floe_hybrid_options_free(options);
    CHECK(cache != NULL);
    floe_opened state;
    CHECK(floe_hybrid_opened(cache, &state) == FLOE_STATUS_OK && state == expected);
    return cache;
}

static floe_inserted put(floe_hybrid *cache, const char *key, const char *value, floe_placement place) {
    floe_inserted inserted;
    CHECK(floe_hybrid_insert(cache, key, strlen(key), value, strlen(value), place, 0, &inserted) == FLOE_STATUS_OK);
    return inserted;
}

static int holds(const floe_value *value, const char *text) {
    return floe_value_len(value) == strlen(text) && memcmp(floe_value_data(value), text, strlen(text)) == 0;
}

static int has(floe_hybrid *cache, const char *key, const char *text) {
    floe_value *value;
    const floe_status status = floe_hybrid_get(cache, key, strlen(key), &value);
    if (status == FLOE_STATUS_NOT_FOUND) return 0;
    CHECK(status == FLOE_STATUS_OK);
    const int same = holds(value, text);
    floe_value_release(value);
    return same;
}

static void options_are_checked(void) {
    floe_hybrid_options *options = floe_hybrid_options_new();
    WRONG(floe_hybrid_options_set_admission(options, "all"), "'all'");
    WRONG(floe_hybrid_options_set_write_budget(options, "much"), "'much'");
    WRONG(floe_hybrid_options_set_compression(options, "best"), "'best'");
    WRONG(floe_hybrid_options_add_flash(options, NULL, 1), "path");
    WRONG(floe_hybrid_options_set_memory(NULL, 1), "options");
    CHECK(floe_hybrid_open(NULL) == NULL);
    CHECK(floe_hybrid_open(options) == NULL && strstr(floe_error_message(), "path"));
    CHECK(floe_hybrid_options_set_memory(options, 8 << 20) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_add_flash(options, path_of("none/here"), FLASH) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_open(options) == NULL && strstr(floe_error_message(), "none/here"));
    floe_hybrid_options_free(options);
    floe_hybrid_options_free(NULL);
}

static atomic_long freed;

static void count_free(void *data, size_t len, void *context) {
    (void)len;
    CHECK(context == &freed);
    free(data);
    atomic_fetch_add(&freed, 1);
}

static void objects_are_found_until_removed(void) {
    floe_hybrid *cache = opened(described("one"), FLOE_OPENED_NEW);
    CHECK(put(cache, "memory", "one", FLOE_PLACEMENT_BOTH) == FLOE_INSERTED_IN_MEMORY);
    CHECK(put(cache, "flash", "two", FLOE_PLACEMENT_TO_FLASH) == FLOE_INSERTED_TO_FLASH);
    CHECK(put(cache, "", "", FLOE_PLACEMENT_TO_FLASH) == FLOE_INSERTED_TO_FLASH);
    CHECK(floe_hybrid_sync(cache) == FLOE_STATUS_OK);
    CHECK(has(cache, "memory", "one") && has(cache, "flash", "two") && has(cache, "", ""));
    CHECK(floe_hybrid_contains(cache, "flash", 5) && !floe_hybrid_contains(cache, "flas", 4));
    CHECK(!floe_hybrid_contains(NULL, "flash", 5));
    floe_value *value = (floe_value *)8;
    CHECK(floe_hybrid_get(cache, "none", 4, &value) == FLOE_STATUS_NOT_FOUND && value == NULL);
    floe_value_release(value);
    CHECK(floe_hybrid_peek(cache, "flash", 5, &value) == FLOE_STATUS_OK && holds(value, "two"));
    floe_value_release(value);

    /* An object that is too large takes the older one of its key with it. */
    size_t large = FLASH / 4;
    char *data = calloc(1, large);
    floe_inserted inserted;
    CHECK(floe_hybrid_insert_given(cache, "memory", 6, data, large, FLOE_PLACEMENT_BOTH, 0, count_free, &freed,
                                   &inserted) == FLOE_STATUS_OK);
    CHECK(inserted == FLOE_INSERTED_TOO_LARGE && atomic_load(&freed) == 1 && !has(cache, "memory", "one"));

    data = strdup("three");
    CHECK(floe_hybrid_insert_given(cache, "given", 5, data, 5, FLOE_PLACEMENT_MEMORY_ONLY, 0, count_free, &freed,
                                   NULL) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_get(cache, "given", 5, &value) == FLOE_STATUS_OK && floe_value_data(value) == data);
    floe_value_release(value);
    CHECK(floe_hybrid_remove(cache, "given", 5) == FLOE_STATUS_OK && !floe_hybrid_contains(cache, "given", 5));
    CHECK(floe_hybrid_remove(cache, "given", 5) == FLOE_STATUS_OK);

    CHECK(put(cache, "short", "life", FLOE_PLACEMENT_BOTH) == FLOE_INSERTED_IN_MEMORY);
    CHECK(floe_hybrid_insert(cache, "short", 5, "life", 4, FLOE_PLACEMENT_BOTH, 1, NULL) == FLOE_STATUS_OK);
    CHECK(put(cache, "gone", "1", FLOE_PLACEMENT_TO_FLASH) == FLOE_INSERTED_TO_FLASH);
    CHECK(floe_hybrid_remove_durably(cache, "gone", 4) == FLOE_STATUS_OK && !has(cache, "gone", "1"));

    WRONG(floe_hybrid_insert(cache, "a", 1, "1", 1, (floe_placement)7, 0, NULL), "placement is 7");
    WRONG(floe_hybrid_insert(cache, "a", 1, NULL, 1, FLOE_PLACEMENT_BOTH, 0, NULL), "data");
    WRONG(floe_hybrid_insert(cache, NULL, 1, "1", 1, FLOE_PLACEMENT_BOTH, 0, NULL), "key");
    WRONG(floe_hybrid_insert_given(cache, "a", 1, &large, SIZE_MAX, FLOE_PLACEMENT_BOTH, 0, count_free, NULL, NULL),
          "data");
    WRONG(floe_hybrid_get(cache, "a", 1, NULL), "value");
    WRONG(floe_hybrid_get(NULL, "a", 1, &value), "cache");
    CHECK(value == NULL);
    WRONG(floe_hybrid_opened(cache, NULL), "opened");

    floe_hybrid_options *again = described("one");
    CHECK(floe_hybrid_open(again) == NULL && strstr(floe_error_message(), "one"));
    CHECK(floe_hybrid_flash_status(cache) == FLOE_STATUS_OK && floe_hybrid_reopen_flash(cache) == FLOE_STATUS_OK);
    CHECK(put(cache, "kept", "four", FLOE_PLACEMENT_BOTH) == FLOE_INSERTED_IN_MEMORY);
    CHECK(floe_hybrid_get(cache, "kept", 4, &value) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_close(cache) == FLOE_STATUS_OK && floe_hybrid_close(cache) == FLOE_STATUS_OK);
    CHECK(put(cache, "late", "1", FLOE_PLACEMENT_TO_FLASH) == FLOE_INSERTED_FLASH_ENDED);
    floe_hybrid_free(cache);
    CHECK(holds(value, "four"));
    floe_value_release(value);

    /* What was closed is found. */
    cache = opened(again, FLOE_OPENED_CLEAN);
    CHECK(has(cache, "kept", "four") && has(cache, "flash", "two"));
    CHECK(!has(cache, "given", "three") && !has(cache, "gone", "1") && !has(cache, "memory", "one"));
    floe_hybrid_figures figures;
    CHECK(floe_hybrid_stats(cache, &figures, sizeof figures) == FLOE_STATUS_OK);
    CHECK(figures.flash_hits == 2 && figures.misses == 3 && figures.drives == 1 && figures.flash_failed == 0);
    /* A program that knows of fewer fields, or of more. */
    unsigned char more[sizeof figures + 8];
    memset(more, 0xaa, sizeof more);
    CHECK(floe_hybrid_stats(cache, (floe_hybrid_figures *)more, sizeof figures.memory_hits) == FLOE_STATUS_OK);
    CHECK(more[0] == 0 && more[sizeof figures.memory_hits] == 0xaa);
    floe_hybrid_figures *known = malloc(sizeof more);
    CHECK(floe_hybrid_stats(cache, known, sizeof more) == FLOE_STATUS_OK && known->flash_hits == 2);
    CHECK(((unsigned char *)known)[sizeof figures] == 0);
    free(known);
    WRONG(floe_hybrid_stats(cache, NULL, sizeof figures), "figures");
    CHECK(floe_hybrid_clear(cache) == FLOE_STATUS_OK && !has(cache, "flash", "two"));
    floe_hybrid_free(cache);
    floe_hybrid_free(NULL);
}

/* The number of the key, twice, and text that can be compressed. */
static size_t value_of(uint64_t number, char *value) {
    memset(value, 'a' + (int)(number % 26), 500);
    memcpy(value, &number, sizeof number);
    memcpy(value + 400, &number, sizeof number);
    return 408 + number % 90;
}

static int is_value_of(uint64_t number, const floe_value *value) {
    char expected[500];
    const size_t len = value_of(number, expected);
    return floe_value_len(value) == len && memcmp(floe_value_data(value), expected, len) == 0;
}

#define MANY 1000

static void many_keys_are_looked_up_at_once(void) {
    floe_hybrid_options *options = described("many");
    CHECK(floe_hybrid_options_add_flash(options, path_of("more"), FLASH) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_set_compression(options, "lz4") == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_set_admission(options, "everything") == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_set_write_budget(options, "40 MB/s") == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_set_object_bytes(options, 500) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_set_time_to_live_ms(options, 3600000) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_options_set_waiting(options, true) == FLOE_STATUS_OK);
    floe_hybrid *cache = opened(options, FLOE_OPENED_NEW);
    uint64_t numbers[2 * MANY];
    floe_bytes keys[2 * MANY];
    for (uint64_t at = 0; at < 2 * MANY; at++) {
        numbers[at] = at;
        keys[at].data = &numbers[at];
        keys[at].len = sizeof numbers[at];
        if (at >= MANY) continue;
        char value[500];
        floe_inserted inserted;
        const floe_placement place = at % 3 == 0 ? FLOE_PLACEMENT_BOTH : FLOE_PLACEMENT_TO_FLASH;
        CHECK(floe_hybrid_insert(cache, &at, sizeof at, value, value_of(at, value), place, 0, &inserted) ==
              FLOE_STATUS_OK);
        CHECK(inserted == (at % 3 == 0 ? FLOE_INSERTED_IN_MEMORY : FLOE_INSERTED_TO_FLASH));
    }
    CHECK(floe_hybrid_sync(cache) == FLOE_STATUS_OK);
    floe_hybrid_lookup *lookups[3];
    for (int at = 0; at < 3; at++) {
        CHECK(floe_hybrid_lookup_begin(cache, keys, 2 * MANY, &lookups[at]) == FLOE_STATUS_OK);
    }
    while (!floe_hybrid_lookup_is_ready(lookups[0])) usleep(100);
    CHECK(floe_hybrid_lookup_wait(lookups[1]) == FLOE_STATUS_OK && floe_hybrid_lookup_is_ready(lookups[1]));
    for (int lookup = 0; lookup < 2; lookup++) {
        for (uint64_t at = 0; at < 2 * MANY; at++) {
            floe_value *value;
            const floe_status status = floe_hybrid_lookup_value(lookups[lookup], at, &value);
            CHECK(status == (at < MANY ? FLOE_STATUS_OK : FLOE_STATUS_NOT_FOUND));
            CHECK(at >= MANY || is_value_of(at, value));
            floe_value_release(value);
        }
        floe_value *kept = (floe_value *)8;
        WRONG(floe_hybrid_lookup_value(lookups[lookup], 2 * MANY, &kept), "number is 2000");
        CHECK(kept == NULL);
        CHECK(floe_hybrid_lookup_value(lookups[lookup], 7, &kept) == FLOE_STATUS_OK);
        floe_hybrid_lookup_free(lookups[lookup]);
        CHECK(is_value_of(7, kept));
        floe_value_release(kept);
    }
    floe_hybrid_lookup *lookup;
    CHECK(floe_hybrid_lookup_begin(cache, NULL, 0, &lookup) == FLOE_STATUS_OK && floe_hybrid_lookup_is_ready(lookup));
    floe_hybrid_lookup_free(lookup);
    CHECK(floe_hybrid_lookup_begin(cache, keys + MANY, 1, &lookup) == FLOE_STATUS_OK);
    CHECK(floe_hybrid_lookup_is_ready(lookup)); /* absent keys need no read */
    floe_hybrid_lookup_free(lookup);
    WRONG(floe_hybrid_lookup_begin(cache, NULL, 1, &lookup), "keys");
    CHECK(lookup == NULL);
    WRONG(floe_hybrid_lookup_begin(cache, keys, 1, NULL), "lookup");
    WRONG(floe_hybrid_lookup_begin(NULL, keys, 1, &lookup), "cache");
    WRONG(floe_hybrid_lookup_wait(NULL), "lookup");
    CHECK(!floe_hybrid_lookup_is_ready(NULL));
    floe_hybrid_lookup_free(NULL);
    /* One that nobody has waited for, and that outlives its cache. */
    CHECK(floe_hybrid_close(cache) == FLOE_STATUS_OK);
    floe_hybrid_free(cache);
    floe_hybrid_lookup_free(lookups[2]);
}

static floe_hybrid *shared;

static void *work(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15;
    for (int at = 0; at < 3000; at++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        uint64_t key = (random >> 33) % 500;
        char value[500];
        floe_value *found;
        floe_hybrid_lookup *lookup;
        const floe_bytes asked = {&key, sizeof key};
        switch (at % 8) {
        case 0:
        case 1: {
            const floe_placement place = at % 8 == 0 ? FLOE_PLACEMENT_BOTH : FLOE_PLACEMENT_TO_FLASH;
            CHECK(floe_hybrid_insert(shared, &key, sizeof key, value, value_of(key, value), place, 0, NULL) ==
                  FLOE_STATUS_OK);
            break;
        }
        case 2:
            CHECK(random % 16 > 0 || floe_hybrid_remove(shared, &key, sizeof key) == FLOE_STATUS_OK);
            break;
        case 3:
            CHECK(floe_hybrid_lookup_begin(shared, &asked, 1, &lookup) == FLOE_STATUS_OK);
            CHECK(floe_hybrid_lookup_wait(lookup) == FLOE_STATUS_OK);
            if (floe_hybrid_lookup_value(lookup, 0, &found) == FLOE_STATUS_OK) CHECK(is_value_of(key, found));
            floe_value_release(found);
            floe_hybrid_lookup_free(lookup);
            break;
        default:
            if (floe_hybrid_get(shared, &key, sizeof key, &found) == FLOE_STATUS_OK) CHECK(is_value_of(key, found));
            floe_value_release(found);
        }
    }
    return NULL;
}

static void threads(void) {
    shared = opened(described("threads"), FLOE_OPENED_NEW);
    pthread_t workers[3];
    for (uintptr_t at = 0; at < 3; at++) CHECK(pthread_create(&workers[at], NULL, work, (void *)(at + 1)) == 0);
    for (int at = 0; at < 3; at++) pthread_join(workers[at], NULL);
    floe_hybrid_free(shared);
    floe_hybrid_free(opened(described("threads"), FLOE_OPENED_CLEAN));
}

/* A child of fork frees its copy, and the parent's cache goes on. */
static void forks(void) {
    floe_hybrid *cache = opened(described("fork"), FLOE_OPENED_NEW);
    CHECK(put(cache, "memory", "one", FLOE_PLACEMENT_BOTH) == FLOE_INSERTED_IN_MEMORY);
    CHECK(put(cache, "flash", "two", FLOE_PLACEMENT_TO_FLASH) == FLOE_INSERTED_TO_FLASH);
    const pid_t child = fork();
    if (child == 0) {
        floe_hybrid_free(cache);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(has(cache, "memory", "one") && has(cache, "flash", "two"));
    floe_hybrid_free(cache);
    cache = opened(described("fork"), FLOE_OPENED_CLEAN);
    CHECK(has(cache, "memory", "one") && has(cache, "flash", "two"));
    floe_hybrid_free(cache);
}

int main(void) {
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/floe-c-XXXXXX", temporary != NULL ? temporary : "/tmp");
    CHECK(mkdtemp(folder) != NULL);
    options_are_checked();
    objects_are_found_until_removed();
    many_keys_are_looked_up_at_once();
    threads();
    forks();
    const char *files[] = {"one", "many", "more", "threads", "fork"};
    for (size_t at = 0; at < sizeof files / sizeof *files; at++) CHECK(unlink(path_of(files[at])) == 0);
    CHECK(rmdir(folder) == 0);
    puts("done");
    return 0;
}
