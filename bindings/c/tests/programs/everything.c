/* All of floe.h, from C, with several threads. Prints "done" if nothing is wrong. */
#include <floe.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, floe_error_message()); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static floe_cache *made(size_t entries, uint64_t weight, const char *policy) {
    floe_options *options = floe_options_new();
    CHECK(options != NULL);
    if (entries > 0) CHECK(floe_options_set_capacity(options, entries) == FLOE_STATUS_OK);
    if (weight > 0) CHECK(floe_options_set_weight_capacity(options, weight) == FLOE_STATUS_OK);
    if (policy != NULL) CHECK(floe_options_set_policy(options, policy) == FLOE_STATUS_OK);
    floe_cache *cache = floe_cache_new(options);
    floe_options_free(options);
    CHECK(cache != NULL);
    return cache;
}

static atomic_long freed;

static void count_free(void *data, size_t len, void *context) {
    (void)len;
    CHECK(context == &freed);
    free(data);
    atomic_fetch_add(&freed, 1);
}

static void sum(void *context, const void *data, size_t len) {
    for (size_t at = 0; at < len; at++) *(long *)context += ((const unsigned char *)data)[at];
}

static void note(void *context, size_t number, const void *data, size_t len) {
    CHECK(len == 1);
    ((int *)context)[number] = *(const unsigned char *)data;
}

static void copies(void) {
    floe_cache *cache = made(100, 0, NULL);
    CHECK(floe_insert(cache, "one", 3, "1", 1) == FLOE_STATUS_OK);
    CHECK(floe_insert(cache, "", 0, "", 0) == FLOE_STATUS_OK);
    CHECK(floe_insert(cache, NULL, 0, NULL, 0) == FLOE_STATUS_OK);
    CHECK(floe_len(cache) == 2 && floe_contains(cache, "one", 3) && !floe_contains(cache, "on", 2));
    char buffer[4] = "...";
    size_t len = 77;
    CHECK(floe_get_copy(cache, "one", 3, buffer, sizeof buffer, &len) == FLOE_STATUS_OK);
    CHECK(len == 1 && buffer[0] == '1' && buffer[1] == '.');
    CHECK(floe_insert(cache, "one", 3, "longer", 6) == FLOE_STATUS_OK);
    CHECK(floe_get_copy(cache, "one", 3, buffer, sizeof buffer, &len) == FLOE_STATUS_TOO_SMALL);
    CHECK(len == 6 && buffer[0] == '1');
    CHECK(floe_get_copy(cache, "", 0, NULL, 0, &len) == FLOE_STATUS_OK && len == 0);
    CHECK(floe_get_copy(cache, "two", 3, buffer, 4, &len) == FLOE_STATUS_NOT_FOUND && len == 0);
    CHECK(floe_remove(cache, "one", 3) == FLOE_STATUS_OK);
    CHECK(floe_remove(cache, "one", 3) == FLOE_STATUS_NOT_FOUND);
    CHECK(floe_clear(cache) == FLOE_STATUS_OK && floe_len(cache) == 0);
    floe_cache_free(cache);
}

static void lookups(void) {
    floe_cache *cache = made(1000, 0, "lru");
    floe_bytes keys[300];
    char names[300][8];
    int seen[300];
    for (int at = 0; at < 300; at++) {
        keys[at].data = names[at];
        keys[at].len = (size_t)snprintf(names[at], sizeof names[at], "key%d", at);
        seen[at] = -1;
        unsigned char value = (unsigned char)at;
        if (at % 3 != 0) CHECK(floe_insert(cache, names[at], keys[at].len, &value, 1) == FLOE_STATUS_OK);
    }
    size_t found = 0;
    CHECK(floe_read_many(cache, keys, 300, note, seen, &found) == FLOE_STATUS_OK && found == 200);
    for (int at = 0; at < 300; at++) CHECK(seen[at] == (at % 3 == 0 ? -1 : at % 256));
    long total = 0;
    CHECK(floe_read(cache, "key1", 4, sum, &total) == FLOE_STATUS_OK && total == 1);
    CHECK(floe_read(cache, "key3", 4, sum, &total) == FLOE_STATUS_NOT_FOUND && total == 1);
    floe_stats stats;
    CHECK(floe_cache_stats(cache, &stats, sizeof stats) == FLOE_STATUS_OK);
    CHECK(stats.hits == 201 && stats.misses == 101 && stats.insertions == 200 && stats.entries == 200);
    /* A program that knows fewer fields, and one that knows more. */
    uint64_t little = 0, many[64];
    memset(many, 0xff, sizeof many);
    CHECK(floe_cache_stats(cache, (floe_stats *)&little, sizeof little) == FLOE_STATUS_OK);
    CHECK(floe_cache_stats(cache, (floe_stats *)many, sizeof many) == FLOE_STATUS_OK);
    CHECK(little == stats.hits && many[0] == stats.hits && many[63] == 0);
    floe_cache_free(cache);
}

static void given(void) {
    atomic_store(&freed, 0);
    floe_cache *cache = made(10, 0, "fifo");
    for (int at = 0; at < 1000; at++) {
        char *data = malloc(32);
        int len = snprintf(data, 32, "value %d", at);
        CHECK(floe_insert_given(cache, &at, sizeof at, data, (size_t)len, 0, 0, count_free, &freed) == FLOE_STATUS_OK);
    }
    CHECK(floe_reclaim(cache) == FLOE_STATUS_OK && atomic_load(&freed) == 990);
    int last = 999;
    floe_value *kept = NULL;
    CHECK(floe_get(cache, &last, sizeof last, &kept) == FLOE_STATUS_OK);
    floe_cache_free(cache);
    CHECK(atomic_load(&freed) == 999);
    CHECK(floe_value_len(kept) == 9 && memcmp(floe_value_data(kept), "value 999", 9) == 0);
    floe_value_release(kept);
    CHECK(atomic_load(&freed) == 1000);
    floe_value_release(NULL);
}

/* Expired data is freed though nobody calls the cache, and what is held once it is released. */
static void quiet(void) {
    atomic_store(&freed, 0);
    floe_cache *cache = made(1000, 0, NULL);
    for (int at = 0; at < 100; at++) {
        char *data = malloc(8);
        memset(data, 'x', 8);
        CHECK(floe_insert_given(cache, &at, sizeof at, data, 8, 0, 200, count_free, &freed) == FLOE_STATUS_OK);
    }
    int last = 99;
    floe_value *kept = NULL;
    floe_get(cache, &last, sizeof last, &kept);
    long waits = kept == NULL ? 100 : 99;
    const struct timespec pause = {0, 10000000};
    for (int times = 0; atomic_load(&freed) < waits && times < 6000; times++) thrd_sleep(&pause, NULL);
    CHECK(atomic_load(&freed) == waits);
    floe_value_release(kept);
    for (int times = 0; atomic_load(&freed) < 100 && times < 6000; times++) thrd_sleep(&pause, NULL);
    CHECK(atomic_load(&freed) == 100);
    floe_cache_free(cache);
}

static void weights(void) {
    atomic_store(&freed, 0);
    floe_cache *cache = made(0, 1000, NULL);
    char *heavy = malloc(1);
    *heavy = 'h';
    CHECK(floe_insert_given(cache, "heavy", 5, heavy, 1, 1001, 0, count_free, &freed) == FLOE_STATUS_OK);
    CHECK(!floe_contains(cache, "heavy", 5)); /* declined, and freed */
    floe_reclaim(cache);
    CHECK(atomic_load(&freed) == 1);
    CHECK(floe_insert(cache, "key", 3, "1234567", 7) == FLOE_STATUS_OK);
    floe_stats stats;
    CHECK(floe_cache_stats(cache, &stats, sizeof stats) == FLOE_STATUS_OK && stats.weight == 10);
    CHECK(floe_resize_weight(cache, 9) == FLOE_STATUS_OK && floe_len(cache) == 0);
    CHECK(floe_resize(cache, 10) == FLOE_STATUS_INVALID);
    floe_cache_free(cache);
}

struct source { atomic_int calls; int answer; };

static int32_t load(void *context, const void *key, size_t key_len, floe_loaded *loaded) {
    struct source *source = context;
    atomic_fetch_add(&source->calls, 1);
    if (source->answer != 0) return source->answer;
    loaded->data = malloc(key_len);
    memcpy(loaded->data, key, key_len);
    loaded->len = key_len;
    loaded->free_data = count_free;
    loaded->context = &freed;
    return 0;
}

static void loads(void) {
    atomic_store(&freed, 0);
    floe_cache *cache = made(10, 0, NULL);
    struct source source = {0, 42};
    floe_value *value = (floe_value *)&source;
    int32_t said = 0;
    CHECK(floe_get_or_load(cache, "key", 3, load, &source, &value, &said) == FLOE_STATUS_LOAD_FAILED);
    CHECK(value == NULL && said == 42 && strstr(floe_error_message(), "42") != NULL);
    source.answer = 0;
    for (int at = 0; at < 3; at++) {
        CHECK(floe_get_or_load(cache, "key", 3, load, &source, &value, NULL) == FLOE_STATUS_OK);
        CHECK(floe_value_len(value) == 3 && memcmp(floe_value_data(value), "key", 3) == 0);
        floe_value_release(value);
    }
    CHECK(atomic_load(&source.calls) == 2);
    floe_cache_free(cache);
    CHECK(atomic_load(&freed) == 1);
}

static int32_t brings_nothing(void *context, const void *key, size_t key_len, floe_loaded *loaded) {
    (void)key, (void)key_len;
    loaded->len = *(size_t *)context;
    loaded->free_data = count_free;
    loaded->context = &freed;
    return 0;
}

static int32_t brings_too_much(void *context, const void *key, size_t key_len, floe_loaded *loaded) {
    (void)key, (void)key_len;
    loaded->data = context;
    loaded->len = SIZE_MAX;
    loaded->free_data = count_free;
    loaded->context = &freed;
    return 0;
}

/* What a loader fills in is checked as arguments are. */
static void wrong_loads(void) {
    atomic_store(&freed, 0);
    floe_cache *cache = made(10, 0, NULL);
    floe_value *value = NULL;
    struct source source = {0, 0};
    size_t len = 100;
    CHECK(floe_get_or_load(cache, "key", 3, brings_nothing, &len, &value, NULL) == FLOE_STATUS_INVALID);
    CHECK(strstr(floe_error_message(), "100") != NULL && value == NULL && floe_len(cache) == 0);
    CHECK(floe_get_or_load(cache, "key", 3, brings_too_much, &len, &value, NULL) == FLOE_STATUS_INVALID);
    CHECK(value == NULL && atomic_load(&freed) == 0);
    CHECK(floe_get_or_load(cache, "key", 3, load, &source, &value, NULL) == FLOE_STATUS_OK);
    floe_value_release(value);
    len = 0;
    CHECK(floe_get_or_load(cache, "empty", 5, brings_nothing, &len, &value, NULL) == FLOE_STATUS_OK);
    CHECK(floe_value_len(value) == 0);
    floe_value_release(value);
    floe_stats stats;
    CHECK(floe_cache_stats(cache, &stats, sizeof stats) == FLOE_STATUS_OK && stats.failed_loads == 2);
    floe_cache_free(cache);
    CHECK(atomic_load(&freed) == 0 + 1 + 1);
}

struct needs { floe_cache *cache; const char *other; atomic_int *both_load; };

/* Asks for another key, and brings one byte. */
static int32_t load_with(void *context, const void *key, size_t key_len, floe_loaded *loaded) {
    struct needs *needs = context;
    struct source source = {0, 0};
    floe_value *value = NULL;
    if (needs->both_load != NULL) {
        atomic_fetch_add(needs->both_load, 1);
        while (atomic_load(needs->both_load) < 2) sched_yield();
    }
    floe_status status = floe_get_or_load(needs->cache, needs->other, 1, load, &source, &value, NULL);
    if (status != FLOE_STATUS_OK) return (int32_t)status;
    floe_value_release(value);
    return load(&source, key, key_len, loaded);
}

static void *load_first(void *context) {
    struct needs *needs = context;
    floe_value *value = NULL;
    const char *own = needs->other[0] == 'a' ? "b" : "a";
    CHECK(floe_get_or_load(needs->cache, own, 1, load_with, needs, &value, NULL) == FLOE_STATUS_OK);
    CHECK(floe_value_len(value) == 1);
    floe_value_release(value);
    return NULL;
}

/* A load of its own key is an error, and loads that need each other end. */
static void circles(void) {
    floe_cache *cache = made(10, 0, NULL);
    struct needs own = {cache, "a", NULL};
    floe_value *value = NULL;
    int32_t said = 0;
    CHECK(floe_get_or_load(cache, "a", 1, load_with, &own, &value, &said) == FLOE_STATUS_LOAD_FAILED);
    CHECK(said == FLOE_STATUS_INVALID && value == NULL);
    for (int at = 0; at < 20; at++) {
        atomic_int both_load = 0;
        struct needs first = {cache, "a", &both_load}, second = {cache, "b", &both_load};
        pthread_t threads[2];
        CHECK(pthread_create(&threads[0], NULL, load_first, &first) == 0);
        CHECK(pthread_create(&threads[1], NULL, load_first, &second) == 0);
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        CHECK(floe_contains(cache, "a", 1) && floe_contains(cache, "b", 1));
        CHECK(floe_clear(cache) == FLOE_STATUS_OK);
    }
    floe_cache_free(cache);
}

static atomic_int left[7];

static void tell(void *context, const void *key, size_t key_len, const void *data, size_t len, floe_cause cause) {
    CHECK(context == left && key_len == 1 && len == 1 && key != NULL && data != NULL);
    atomic_fetch_add(&left[cause], 1);
}

static bool show(void *context, const void *key, size_t key_len, const void *data, size_t len) {
    (void)key, (void)key_len, (void)data, (void)len;
    return ++*(int *)context < 2;
}

static void listeners(void) {
    floe_options *options = floe_options_new();
    CHECK(floe_options_set_capacity(options, 2) == FLOE_STATUS_OK);
    CHECK(floe_options_set_shards(options, 1) == FLOE_STATUS_OK);
    CHECK(floe_options_set_listener(options, tell, left) == FLOE_STATUS_OK);
    CHECK(floe_options_set_time_to_live_ms(options, 3600000) == FLOE_STATUS_OK);
    CHECK(floe_options_set_time_to_idle_ms(options, 3600000) == FLOE_STATUS_OK);
    CHECK(floe_options_set_freezing(options, true) == FLOE_STATUS_OK);
    CHECK(floe_options_set_admission(options, "always") == FLOE_STATUS_OK);
    floe_cache *cache = floe_cache_new(options);
    floe_options_free(options);
    CHECK(cache != NULL);
    floe_insert_for(cache, "a", 1, "1", 1, 5, 60000);
    floe_insert(cache, "a", 1, "2", 1);
    floe_insert(cache, "b", 1, "3", 1);
    floe_insert(cache, "c", 1, "4", 1);
    CHECK(floe_remove(cache, "c", 1) == FLOE_STATUS_OK);
    CHECK(left[FLOE_CAUSE_REPLACED] == 1 && left[FLOE_CAUSE_EVICTED] == 1 && left[FLOE_CAUSE_REMOVED] == 1);
    floe_insert(cache, "d", 1, "5", 1);
    int shown = 0;
    CHECK(floe_for_each(cache, show, &shown) == FLOE_STATUS_OK && shown == 2);
    CHECK(floe_resize(cache, 100) == FLOE_STATUS_OK);
    floe_cache_free(cache);
}

/* What is wrong is answered, and says what. */
static void mistakes(void) {
    floe_cache *cache = made(10, 0, NULL);
    floe_options *options = floe_options_new();
    floe_value *value = NULL;
    size_t len;
#define WRONG(call, text) CHECK((call) == FLOE_STATUS_INVALID && strstr(floe_error_message(), text) != NULL)
    WRONG(floe_insert(NULL, "a", 1, "b", 1), "cache");
    WRONG(floe_insert(cache, NULL, 1, "b", 1), "key");
    WRONG(floe_insert(cache, "a", 1, NULL, 1), "data");
    WRONG(floe_insert_given(cache, "a", 1, NULL, 1, 0, 0, count_free, NULL), "data");
    WRONG(floe_get(cache, "a", 1, NULL), "value");
    WRONG(floe_get(NULL, "a", 1, &value), "cache");
    WRONG(floe_get_copy(cache, "a", 1, NULL, 1, &len), "buffer");
    WRONG(floe_get_copy(cache, "a", 1, NULL, 0, NULL), "len");
    WRONG(floe_read(cache, "a", 1, NULL, NULL), "read");
    WRONG(floe_read_many(cache, NULL, 1, note, NULL, NULL), "keys");
    WRONG(floe_get_or_load(cache, "a", 1, NULL, NULL, &value, NULL), "load");
    WRONG(floe_for_each(cache, NULL, NULL), "show");
    WRONG(floe_cache_stats(cache, NULL, 8), "stats");
    WRONG(floe_insert(cache, "a", SIZE_MAX, "b", 1), "key");
    WRONG(floe_options_set_capacity(NULL, 1), "options");
    WRONG(floe_options_set_policy(options, "no-such-policy"), "no-such-policy");
    WRONG(floe_options_set_policy(options, NULL), "policy");
    CHECK(floe_cache_new(options) == NULL && strstr(floe_error_message(), "capacity") != NULL);
    CHECK(floe_options_set_capacity(options, (size_t)1 << 40) == FLOE_STATUS_OK);
    CHECK(floe_cache_new(options) == NULL && floe_error_message()[0] != '\0');
    CHECK(floe_options_set_capacity(options, 10) == FLOE_STATUS_OK);
    CHECK(floe_options_set_admission(options, "no-such-admission") == FLOE_STATUS_OK);
    CHECK(floe_cache_new(options) == NULL && strstr(floe_error_message(), "no-such-admission") != NULL);
    CHECK(!floe_contains(NULL, "a", 1) && floe_len(NULL) == 0 && floe_value_data(NULL) == NULL);
    floe_options_free(options);
    floe_options_free(NULL);
    floe_cache_free(cache);
    floe_cache_free(NULL);
}

static int show_all(void *context, const void *key, size_t key_len, const void *data, size_t len) {
    (void)key, (void)key_len, (void)data, (void)len;
    ++*(int *)context;
    return 2;
}

/* Numbers that are in no enum, and bytes that are no bool. */
static void numbers(void) {
    floe_options *options = floe_options_new();
    CHECK(floe_options_set_weight_capacity(options, 1000) == FLOE_STATUS_OK);
    /* As programs call that do not use the header. */
    floe_host *(*make)(const floe_options *, int) = (floe_host * (*)(const floe_options *, int))(void (*)(void))floe_host_new;
    floe_status (*insert)(const floe_host *, const void *, size_t, void *, size_t, floe_host_free_fn, void *, int, floe_handle **) =
        (floe_status(*)(const floe_host *, const void *, size_t, void *, size_t, floe_host_free_fn, void *, int, floe_handle **))(void (*)(void))floe_host_insert;
    floe_host *host = make(options, 6);
    CHECK(host != NULL && floe_host_is_strict(host));
    int priorities[] = {-1, 3, 99, INT32_MAX, INT32_MIN};
    for (size_t at = 0; at < sizeof priorities / sizeof *priorities; at++) {
        CHECK(insert(host, "key", 3, NULL, 1, NULL, NULL, priorities[at], NULL) == FLOE_STATUS_INVALID);
        CHECK(strstr(floe_error_message(), "priority") != NULL);
    }
    for (int priority = 0; priority <= 2; priority++)
        CHECK(insert(host, "key", 3, NULL, 1, NULL, NULL, priority, NULL) == FLOE_STATUS_OK);
    floe_handle *handle = NULL;
    CHECK(insert(host, "key", 3, NULL, SIZE_MAX, NULL, NULL, 0, NULL) == FLOE_STATUS_INVALID);
    CHECK(floe_host_stand_alone(host, "key", 3, NULL, SIZE_MAX, NULL, NULL, &handle) == FLOE_STATUS_INVALID);
    CHECK(floe_host_reclaim(host) == FLOE_STATUS_OK && floe_host_usage(host) == 1);
    floe_host_free(host);
    floe_options_free(options);

    floe_cache *cache = made(10, 0, NULL);
    for (int at = 0; at < 3; at++) floe_insert(cache, &at, sizeof at, "1", 1);
    int shown = 0;
    CHECK(floe_for_each(cache, (floe_entry_fn)(void (*)(void))show_all, &shown) == FLOE_STATUS_OK && shown == 3);
    floe_bytes key = {"a", 1};
    WRONG(floe_read_many(cache, &key, SIZE_MAX, note, NULL, NULL), "count");
    WRONG(floe_insert_given(cache, "a", 1, &key, SIZE_MAX, 0, 0, count_free, NULL), "data");
    floe_cache_free(cache);
}

static floe_cache *shared;
static atomic_long wrong;

static void look(void *context, const void *data, size_t len) {
    uint64_t key, value;
    memcpy(&key, context, sizeof key);
    if (len == sizeof value) memcpy(&value, data, sizeof value);
    if (len != sizeof value || value != key * 3) atomic_fetch_add(&wrong, 1);
}

static void *work(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15;
    for (int at = 0; at < 20000; at++) {
        random = random * 6364136223846793005 + 1442695040888963407;
        uint64_t key = (random >> 33) % 300;
        floe_value *value = NULL;
        switch (at % 8) {
        case 0: {
            uint64_t *data = malloc(sizeof *data);
            *data = key * 3;
            floe_insert_given(shared, &key, sizeof key, data, sizeof *data, 0, 0, count_free, &freed);
            break;
        }
        case 1:
            if (floe_get(shared, &key, sizeof key, &value) == FLOE_STATUS_OK) {
                look(&key, floe_value_data(value), floe_value_len(value));
                floe_value_release(value);
            }
            break;
        case 2:
            if (random % 16 == 0) floe_remove(shared, &key, sizeof key);
            break;
        default:
            floe_read(shared, &key, sizeof key, look, &key);
        }
    }
    return NULL;
}

static void threads(void) {
    atomic_store(&freed, 0);
    shared = made(100, 0, NULL);
    pthread_t workers[4];
    for (uintptr_t at = 0; at < 4; at++) CHECK(pthread_create(&workers[at], NULL, work, (void *)(at + 1)) == 0);
    for (int at = 0; at < 4; at++) pthread_join(workers[at], NULL);
    floe_cache_free(shared);
    CHECK(atomic_load(&wrong) == 0 && atomic_load(&freed) == 4 * 20000 / 8);
}

int main(void) {
    CHECK(strcmp(floe_version(), EXPECTED_VERSION) == 0);
    copies();
    lookups();
    given();
    weights();
    loads();
    wrong_loads();
    circles();
    listeners();
    quiet();
    mistakes();
    numbers();
    threads();
    puts("done");
    return 0;
}
