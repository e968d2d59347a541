/* Floe: a concurrent cache in memory. MIT OR Apache-2.0. See docs in bindings/c/README.md. */

#ifndef FLOE_H
#define FLOE_H

/* Made from bindings/c/src by its test `header`: change it there. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The result of a function that can fail. 0 is success.
typedef enum floe_status {
  // Done.
  FLOE_STATUS_OK = 0,
  // The key is not there.
  FLOE_STATUS_NOT_FOUND = 1,
  // An argument is wrong, or what a callback has returned; `floe_error_message` says which.
  FLOE_STATUS_INVALID = 2,
  // The buffer is smaller than the value.
  FLOE_STATUS_TOO_SMALL = 3,
  // The loader returned something other than 0.
  FLOE_STATUS_LOAD_FAILED = 4,
  // Floe has a fault; the call may have had part of its effect. Please report it.
  FLOE_STATUS_PANICKED = 5,
  // Objects with handles fill a strict cache.
  FLOE_STATUS_FULL = 6,
} floe_status;

// The importance of an object.
typedef enum floe_priority {
  // Comes in to the pool for high priority, if the cache has one; counts as used once more than
  // others when it comes in otherwise.
  FLOE_PRIORITY_HIGH = 0,
  // Comes in to the pool for low priority, if the cache has one, or where the policy has new
  // entries.
  FLOE_PRIORITY_LOW = 1,
  // Comes in where the policy has new entries.
  FLOE_PRIORITY_BOTTOM = 2,
} floe_priority;

// Why an entry left.
typedef enum floe_cause {
  // To make room.
  FLOE_CAUSE_EVICTED = 0,
  // Its time was over.
  FLOE_CAUSE_EXPIRED = 1,
  // It was removed.
  FLOE_CAUSE_REMOVED = 2,
  // Another value took its place.
  FLOE_CAUSE_REPLACED = 3,
  // It did not fit.
  FLOE_CAUSE_REJECTED = 4,
  // The admission declined it.
  FLOE_CAUSE_BYPASSED = 5,
  // For a reason that this version has no name for.
  FLOE_CAUSE_OTHER = 6,
} floe_cause;

// A cache. All threads may use it at once, until one frees it.
typedef struct floe_cache floe_cache;

// An owner of an object: one pointer, valid until it is released.
typedef struct floe_handle floe_handle;

// A cache for a host. All threads may use it at once, until one frees it.
typedef struct floe_host floe_host;

// Options of a cache. One thread at a time.
typedef struct floe_options floe_options;

// A value that a program keeps: it stays in memory until it is released, whatever becomes of the
// entry or of the cache. Any thread may use and release it.
typedef struct floe_value floe_value;

// Frees a value: called once, when the value has left the cache and no handle is left, by any
// thread, outside of locks. It may use the cache. It must not throw or unwind.
typedef void (*floe_free_fn)(void *data, size_t len, void *context);

// The value that a loader brings.
typedef struct floe_loaded {
  // The value. Belongs to Floe once the loader has returned 0.
  void *data;
  // Its number of bytes.
  size_t len;
  // Its charge; 0 for the length of key and value.
  uint32_t charge;
  // Frees it, as for `floe_insert_given`; NULL for a value that need not be freed.
  floe_free_fn free_data;
  // The last argument of `free_data`.
  void *context;
} floe_loaded;

// Loads the value of a key. Returns 0 when `*loaded` is filled in, or an error of the program's.
// It may use the cache, and load other keys; for its own key `floe_get_or_load` answers with
// `FLOE_STATUS_INVALID`. It must not throw or unwind.
typedef int32_t (*floe_load_fn)(void *context,
                                const void *key,
                                size_t key_len,
                                struct floe_loaded *loaded);

// Is shown a value, which is valid during the call.
typedef void (*floe_read_fn)(void *context, const void *data, size_t len);

// A key of `floe_read_many`.
typedef struct floe_bytes {
  // The first byte; may be NULL if there is none.
  const void *data;
  // The number of bytes.
  size_t len;
} floe_bytes;

// Is shown the value of one of many keys, by the key's number; valid during the call.
typedef void (*floe_read_many_fn)(void *context, size_t number, const void *data, size_t len);

// Is shown an entry, which is valid during the call. Returns whether to go on.
typedef bool (*floe_entry_fn)(void *context,
                              const void *key,
                              size_t key_len,
                              const void *data,
                              size_t len);

// Counts of a cache since it was made, and of its content. Counts of other threads may be a
// moment late. A later version may have more fields at the end: see `floe_cache_stats`.
typedef struct floe_stats {
  // Lookups that found their key.
  uint64_t hits;
  // Lookups that did not.
  uint64_t misses;
  // Of the hits, those on frozen entries.
  uint64_t frozen_hits;
  // Entries that came in.
  uint64_t insertions;
  // Values that took another's place.
  uint64_t replacements;
  // Entries that did not come in because they did not fit.
  uint64_t rejections;
  // Entries that left to make room.
  uint64_t evictions;
  // Entries whose time was over.
  uint64_t expirations;
  // Entries that were removed.
  uint64_t removals;
  // Loads that were begun.
  uint64_t loads;
  // Of these, those that failed.
  uint64_t failed_loads;
  // Entries.
  uint64_t entries;
  // The sum of their charges; their number in a cache without a capacity of weight.
  uint64_t weight;
  // Of the entries, those that are frozen.
  uint64_t frozen;
  // Entries that have left and wait to be freed, those that are kept included.
  uint64_t waiting;
  // Bytes the cache holds for itself and its entries, without keys' and values' own memory.
  uint64_t memory_bytes;
} floe_stats;

// Frees an object: called once, when it has left the cache and no handle is left, by any thread,
// outside of locks. It may use the cache. It must not throw or unwind.
typedef void (*floe_host_free_fn)(const void *key, size_t key_len, void *object, void *context);

// Is shown an object of the cache, which is valid during the call.
typedef void (*floe_host_see_fn)(void *seer,
                                 const void *key,
                                 size_t key_len,
                                 void *object,
                                 size_t charge,
                                 void *context);

// Is told of an entry that left. Key and value are valid during the call.
typedef void (*floe_left_fn)(void *context,
                             const void *key,
                             size_t key_len,
                             const void *data,
                             size_t len,
                             enum floe_cause cause);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a cache; NULL where it cannot be as described. To be freed by `floe_cache_free`.
struct floe_cache *floe_cache_new(const struct floe_options *options);

// Frees a cache and, but for those that are kept, its values. No thread may use the cache then or
// later. NULL does nothing.
void floe_cache_free(struct floe_cache *cache);

// Inserts a copy of a value, in place of the one that is there under the key, if any. Its charge
// is the length of key and value.
//
// A cache may decline an entry, by its admission or because it is too heavy; that is no error.
enum floe_status floe_insert(const struct floe_cache *cache,
                             const void *key,
                             size_t key_len,
                             const void *data,
                             size_t len);

// As `floe_insert`, with a charge (0 for the length of key and value) and a time to live in
// milliseconds (0 for the cache's).
enum floe_status floe_insert_for(const struct floe_cache *cache,
                                 const void *key,
                                 size_t key_len,
                                 const void *data,
                                 size_t len,
                                 uint32_t charge,
                                 uint64_t live_ms);

// Inserts memory that the program gives away. `free_data` is called once, when the value has left
// and nobody keeps it: at once, where the cache declines it. Nothing may write the memory from now
// on, and any thread may read and free it. A charge of 0 is the length of key and value; a time to
// live of 0 the cache's.
//
// On an error the memory still belongs to the program, and `free_data` is not called.
enum floe_status floe_insert_given(const struct floe_cache *cache,
                                   const void *key,
                                   size_t key_len,
                                   void *data,
                                   size_t len,
                                   uint32_t charge,
                                   uint64_t live_ms,
                                   floe_free_fn free_data,
                                   void *context);

// Removes a key. `FLOE_STATUS_NOT_FOUND` if it is not there.
enum floe_status floe_remove(const struct floe_cache *cache, const void *key, size_t key_len);

// Removes all entries.
enum floe_status floe_clear(const struct floe_cache *cache);

// Changes the most entries that the cache holds. It must have been made with such a limit.
enum floe_status floe_resize(const struct floe_cache *cache, size_t entries);

// Changes the most weight that the cache holds. It must have been made with such a limit.
enum floe_status floe_resize_weight(const struct floe_cache *cache, uint64_t weight);

// Frees what has left and is kept by nobody. Caches do so by themselves, in batches; this is for
// programs that wait for their `free_data`.
enum floe_status floe_reclaim(const struct floe_cache *cache);

// Looks a key up and, if it is not there, loads it, once for all threads that ask at the same
// time. `*value` is to be released. Where the loader returns an error, so does this
// (`FLOE_STATUS_LOAD_FAILED`), and `*error`, unless it is NULL, becomes what it returned.
//
// Loads that need each other's keys do not wait for ever: the one that would close the circle
// loads by itself. A loader must not wait for another thread that asks for its key.
//
// Where what the loader filled in makes no sense, such as NULL with a length, the answer is
// `FLOE_STATUS_INVALID`. Then nothing is stored, `free_data` is not called, and the next thread
// that waits calls its loader.
enum floe_status floe_get_or_load(const struct floe_cache *cache,
                                  const void *key,
                                  size_t key_len,
                                  floe_load_fn load,
                                  void *context,
                                  struct floe_value **value,
                                  int32_t *error);

// Looks a key up and keeps its value: `*value` is to be released. Takes a lock; `floe_read` and
// `floe_get_copy` do not. `FLOE_STATUS_NOT_FOUND` if it is not there.
enum floe_status floe_get(const struct floe_cache *cache,
                          const void *key,
                          size_t key_len,
                          struct floe_value **value);

// Looks a key up and copies its value to a buffer of `room` bytes. `*len` becomes the length of
// the value, also where that is more than there is room for: then nothing is copied, and
// `FLOE_STATUS_TOO_SMALL` returned.
enum floe_status floe_get_copy(const struct floe_cache *cache,
                               const void *key,
                               size_t key_len,
                               void *buffer,
                               size_t room,
                               size_t *len);

// Looks a key up and shows its value to a function, which may use the cache and must not throw or
// unwind. The fastest way to read: a hit copies nothing, and with the
// default policy takes no lock.
enum floe_status floe_read(const struct floe_cache *cache,
                           const void *key,
                           size_t key_len,
                           floe_read_fn read,
                           void *context);

// Looks many keys up and shows the values of those that are there to a function, in order, as
// `floe_read` does. Faster than one by one where the cache is larger than the processor's.
// `*found`, unless it is NULL, becomes the number of keys that were there.
enum floe_status floe_read_many(const struct floe_cache *cache,
                                const struct floe_bytes *keys,
                                size_t count,
                                floe_read_many_fn read,
                                void *context,
                                size_t *found);

// Returns whether a key is there. No hit is counted, and the policy does not learn of it. False,
// too, where an argument is wrong.
bool floe_contains(const struct floe_cache *cache, const void *key, size_t key_len);

// Shows all entries to a function, in no particular order, until it returns false. An entry that
// stays meanwhile is shown once; one that comes or leaves may be. The function may use the cache,
// and must not throw or unwind.
enum floe_status floe_for_each(const struct floe_cache *cache, floe_entry_fn show, void *context);

// Counts. `size` is `sizeof(floe_stats)`, so that a program that knows fewer fields gets those.
// Goes through all threads and locks: for once a second, not once a request.
enum floe_status floe_cache_stats(const struct floe_cache *cache,
                                  struct floe_stats *stats,
                                  size_t size);

// Returns the number of entries, 0 for NULL.
size_t floe_len(const struct floe_cache *cache);

// Returns why the last call of this thread that failed did, as a line of text. It is empty before
// the first, and valid until the next call of this thread that fails.
const char *floe_error_message(void);

// Returns the version of the library, such as "0.1.0".
const char *floe_version(void);

// Makes a cache for a host of options with a weight capacity; policy, shards and freezing count,
// too. NULL where it cannot be as described. To be freed by `floe_host_free`.
//
// With `strict`, insertions fail that would exceed the capacity because of objects with handles;
// otherwise they go over it.
struct floe_host *floe_host_new(const struct floe_options *options, bool strict);

// Frees a cache and its objects. No thread may use the cache or have a handle then or later. NULL
// does nothing.
void floe_host_free(struct floe_host *host);

// Inserts an object with its charge, in place of the one under the key, which stays with its
// handles. Where the cache takes no more, the object is by itself: freed with its handle, or at
// once without.
//
// `handle` is NULL, or gets a handle to be released. `free_object` is called once with the key,
// the object and `context`; it may be NULL. Any thread may use and free the object.
//
// `FLOE_STATUS_FULL` if the cache is strict and objects with handles fill it. On that and any
// other error the object still belongs to the program, and `free_object` is not called.
enum floe_status floe_host_insert(const struct floe_host *host,
                                  const void *key,
                                  size_t key_len,
                                  void *object,
                                  size_t charge,
                                  floe_host_free_fn free_object,
                                  void *context,
                                  enum floe_priority priority,
                                  struct floe_handle **handle);

// Looks a key up: a handle to be released, or NULL. Takes no lock; the first four handles of a
// thread write no memory that other threads write.
struct floe_handle *floe_host_lookup(const struct floe_host *host, const void *key, size_t key_len);

// Adds a reference to a handle: it is released once more. Returns whether that was possible.
bool floe_host_reference(const struct floe_host *host, struct floe_handle *handle);

// Releases a handle. With `erase`, and if no other handle is left, removes the entry if it is
// still there and frees the object. Returns whether it did. Takes no lock without `erase`.
bool floe_host_release(const struct floe_host *host, struct floe_handle *handle, bool erase);

// Returns the object of a handle.
void *floe_host_object(const struct floe_handle *handle);

// Returns the distance from an entry to its object, in bytes, by which code in C gets it without a
// call. A handle with the lowest bit set is the address of an entry plus 1; otherwise it points to
// a word that is.
size_t floe_host_object_offset(void);

// Returns the bytes of memory that an entry takes with its key, if that is short: for a host that
// adds it to charges.
size_t floe_host_entry_bytes(void);

// Returns the context that came with the object of a handle.
void *floe_host_context(const struct floe_handle *handle);

// Returns the charge of a handle's object.
size_t floe_host_charge(const struct floe_handle *handle);

// Removes a key; its handles keep the object. `FLOE_STATUS_NOT_FOUND` if it is not there.
enum floe_status floe_host_erase(const struct floe_host *host, const void *key, size_t key_len);

// Removes and frees every object without a handle.
enum floe_status floe_host_clear_unused(const struct floe_host *host);

// Shows all objects in the cache to a function, in no particular order and with no lock held. It
// may use the cache, and must not throw or unwind.
enum floe_status floe_host_for_each(const struct floe_host *host, floe_host_see_fn see, void *seer);

// Changes the capacity. What is too much is evicted before this returns; objects with handles may
// go over it.
enum floe_status floe_host_set_capacity(const struct floe_host *host, size_t capacity);

// Changes whether insertions fail that would exceed the capacity.
enum floe_status floe_host_set_strict(const struct floe_host *host, bool strict);

// Returns whether insertions fail that would exceed the capacity.
bool floe_host_is_strict(const struct floe_host *host);

// Returns the capacity.
size_t floe_host_capacity(const struct floe_host *host);

// Returns the charge of all objects that are not freed yet.
size_t floe_host_usage(const struct floe_host *host);

// Returns the charge of all objects that have handles. Takes a lock that threads take when they
// begin or end.
size_t floe_host_pinned_usage(const struct floe_host *host);

// Counts, as `floe_cache_stats` does; the number of entries is among them.
enum floe_status floe_host_stats(const struct floe_host *host,
                                 struct floe_stats *stats,
                                 size_t size);

// Frees objects that have left the cache and have no handle; they wait for others otherwise.
enum floe_status floe_host_reclaim(const struct floe_host *host);

// Makes a handle of an object that no lookup finds: it counts in the cache's usage, and is freed
// with its last handle. The rest is as of `floe_host_insert`, but `handle` must not be NULL.
enum floe_status floe_host_stand_alone(const struct floe_host *host,
                                       const void *key,
                                       size_t key_len,
                                       void *object,
                                       size_t charge,
                                       floe_host_free_fn free_object,
                                       void *context,
                                       struct floe_handle **handle);

// Returns the key of a handle, and writes its length to `key_len`. The bytes are valid until the
// handle is released. NULL if `key_len` is.
const void *floe_host_key(const struct floe_handle *handle, size_t *key_len);

// Returns new options, to be freed by `floe_options_free`. Without a capacity of entries or of
// weight no cache can be made of them.
struct floe_options *floe_options_new(void);

// Frees options. Caches made of them stay. NULL does nothing.
void floe_options_free(struct floe_options *options);

// Sets the most entries that the cache holds. 0 turns it off.
enum floe_status floe_options_set_capacity(struct floe_options *options, size_t entries);

// Sets the most weight that the cache holds: the sum of the charges of its entries. May be
// combined with a capacity of entries.
enum floe_status floe_options_set_weight_capacity(struct floe_options *options, uint64_t weight);

// Sets the eviction policy by name, such as "s3-fifo", "lru" or "slru:segments=2"; "qd-clock" by
// default.
enum floe_status floe_options_set_policy(struct floe_options *options, const char *policy);

// Sets the admission by name, such as "second-access" or "obp:target=0.2"; by default everything
// is admitted.
enum floe_status floe_options_set_admission(struct floe_options *options, const char *admission);

// Sets the milliseconds after its insertion at which an entry expires, 0 for never. More than 174
// years are for ever.
enum floe_status floe_options_set_time_to_live_ms(struct floe_options *options, uint64_t ms);

// Sets the milliseconds after its last use at which an entry expires, 0 for never. More than 174
// years are for ever.
enum floe_status floe_options_set_time_to_idle_ms(struct floe_options *options, uint64_t ms);

// Sets the number of parts with a lock each, a power of two; 0 for as many as suit the machine.
enum floe_status floe_options_set_shards(struct floe_options *options, size_t shards);

// Sets whether the hottest entries are frozen as long as that is faster.
enum floe_status floe_options_set_freezing(struct floe_options *options, bool freezing);

// Sets the shares of the capacity, from 0 to 1, that a cache for a host keeps for objects of high
// and of low priority; both are 0 by default.
//
// A pool that is full lets its oldest object down: to the next pool, or to where the policy has
// new ones, as one that was used once. So objects leave only after all pools above have let them
// go.
enum floe_status floe_options_set_priority_pools(struct floe_options *options,
                                                 double high,
                                                 double low);

// Sets a function that is told of each entry that leaves, and why. It is called by any thread,
// outside of locks, soon after; it may use the cache. It must not throw or unwind.
enum floe_status floe_options_set_listener(struct floe_options *options,
                                           floe_left_fn listener,
                                           void *context);

// Returns where the bytes of a value begin, or NULL for NULL. They must not be written, and are
// valid until the value is released. Threads: any.
const void *floe_value_data(const struct floe_value *value);

// Returns the number of bytes of a value, or 0 for NULL. Threads: any.
size_t floe_value_len(const struct floe_value *value);

// Releases a value, which must not be used afterwards. NULL does nothing. Threads: any, also
// another one than that which got it, and after the cache was freed.
void floe_value_release(struct floe_value *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLOE_H */
