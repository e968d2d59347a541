/* Floe: caches in memory, and in memory and on flash. MIT OR Apache-2.0. See docs in bindings/c/README.md. */

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
  // An argument is invalid, or the value that a callback returned; `floe_error_message` says
  // which.
  FLOE_STATUS_INVALID = 2,
  // The buffer is smaller than the value.
  FLOE_STATUS_TOO_SMALL = 3,
  // The loader returned something other than 0.
  FLOE_STATUS_LOAD_FAILED = 4,
  // Floe has a fault; the call may have had part of its effect. Please report it.
  FLOE_STATUS_PANICKED = 5,
  // Objects with handles fill a strict cache.
  FLOE_STATUS_FULL = 6,
  // The drive of a cache in memory and on flash has failed, or the cache is closed;
  // `floe_error_message` says which and why.
  FLOE_STATUS_FLASH_FAILED = 7,
} floe_status;

// The importance of an object.
typedef enum floe_priority {
  // The object enters the pool for high priority, if the cache has one. Otherwise it counts as
  // used once more than other new objects.
  FLOE_PRIORITY_HIGH = 0,
  // The object enters the pool for low priority, if the cache has one. Otherwise it enters where
  // the policy places new entries.
  FLOE_PRIORITY_LOW = 1,
  // The object enters where the policy places new entries.
  FLOE_PRIORITY_BOTTOM = 2,
} floe_priority;

// The state in which a cache was found when it was opened.
typedef enum floe_opened {
  // There was none: it was created.
  FLOE_OPENED_NEW = 0,
  // It had been closed.
  FLOE_OPENED_CLEAN = 1,
  // It had not been closed: what had been written to flash was recovered.
  FLOE_OPENED_RECOVERED = 2,
} floe_opened;

// The places where a cache may keep an object.
typedef enum floe_placement {
  // Memory, and flash once memory evicts the object.
  FLOE_PLACEMENT_BOTH = 0,
  // Memory, and flash when the cache is closed. For objects that are rarely used again.
  FLOE_PLACEMENT_NOT_ADMITTED = 1,
  // Memory alone.
  FLOE_PLACEMENT_MEMORY_ONLY = 2,
  // Flash at once, if its admission agrees. For objects that are not used soon.
  FLOE_PLACEMENT_TO_FLASH = 3,
} floe_placement;

// The place of an object after its insertion, or the reason why the cache did not keep it. Above
// `FLOE_INSERTED_TO_FLASH` it was declined, and an older object of the key was removed.
typedef enum floe_inserted {
  // In memory. The object goes to flash when memory evicts it, unless its placement says
  // otherwise.
  FLOE_INSERTED_IN_MEMORY = 0,
  // On its way to flash: its placement says so, or it is too large for memory.
  FLOE_INSERTED_TO_FLASH = 1,
  // Declined: larger than an eighth of the drive or than 1 GiB, or its key has more than 65,535
  // bytes.
  FLOE_INSERTED_TOO_LARGE = 2,
  // Declined: too large for memory, and its placement keeps it off flash.
  FLOE_INSERTED_TOO_LARGE_FOR_MEMORY = 3,
  // Declined: the drive is behind, and the cache was opened not to wait for it.
  FLOE_INSERTED_BEHIND = 4,
  // Declined: another call changed the key meanwhile.
  FLOE_INSERTED_SUPERSEDED = 5,
  // Declined: the object was for flash, which has failed or is closed.
  FLOE_INSERTED_FLASH_ENDED = 6,
  // Declined: the write budget is short.
  FLOE_INSERTED_OVER_BUDGET = 7,
  // Declined by the admission: the object was requested too seldom.
  FLOE_INSERTED_UNPOPULAR = 8,
  // Declined by the admission: writes cost the reads too much.
  FLOE_INSERTED_WRITE_COST = 9,
  // Declined by the admission: the objects in use fit into memory.
  FLOE_INSERTED_FITS_MEMORY = 10,
  // Declined for a reason that this version cannot name.
  FLOE_INSERTED_OTHER = 11,
} floe_inserted;

// The reason for which an entry left the cache, or did not enter it.
typedef enum floe_cause {
  // The policy evicted the entry to make room.
  FLOE_CAUSE_EVICTED = 0,
  // The entry expired.
  FLOE_CAUSE_EXPIRED = 1,
  // The program removed the entry.
  FLOE_CAUSE_REMOVED = 2,
  // Another value replaced the entry's value.
  FLOE_CAUSE_REPLACED = 3,
  // The entry was not inserted, because there was no room for it.
  FLOE_CAUSE_REJECTED = 4,
  // The entry was not inserted, because the admission declined it.
  FLOE_CAUSE_BYPASSED = 5,
  // Another reason, which this version cannot name.
  FLOE_CAUSE_OTHER = 6,
} floe_cause;

// A cache. All threads may use it at once, until one frees it.
typedef struct floe_cache floe_cache;

// A counted reference to an object: one pointer, valid until it is released.
typedef struct floe_handle floe_handle;

// A cache for a host. All threads may use it at once, until one frees it.
typedef struct floe_host floe_host;

// A cache in memory and on flash. All threads may use it at once, until one frees it. It belongs
// to the process that opened it: a child of `fork` may only call `floe_hybrid_free`.
typedef struct floe_hybrid floe_hybrid;

// A lookup of one or more keys that is under way or has ended. One thread at a time may use it,
// and not always the same one. It may outlive the cache, whose files stay locked until then.
typedef struct floe_hybrid_lookup floe_hybrid_lookup;

// Options of a cache in memory and on flash. Only one thread at a time may use them.
typedef struct floe_hybrid_options floe_hybrid_options;

// Options of a cache. Only one thread at a time may use them.
typedef struct floe_options floe_options;

// A reference to a value. The value stays in memory until the reference is released, even if the
// entry is removed or the cache is freed. Any thread may use and release it.
typedef struct floe_value floe_value;

// Function that frees a value. Any thread calls it, once and without locks, when the value has
// left the cache and no reference to it is left. It may use the cache. It must not throw or
// unwind.
typedef void (*floe_free_fn)(void *data, size_t len, void *context);

// The value that a loader returns.
typedef struct floe_loaded {
  // The value. Belongs to Floe once the loader has returned 0.
  void *data;
  // Length of the value in bytes.
  size_t len;
  // Charge of the value; 0 for the length of key and value.
  uint32_t charge;
  // Function that frees the value, as for `floe_insert_given`; NULL for a value that need not be
  // freed.
  floe_free_fn free_data;
  // The last argument of `free_data`.
  void *context;
} floe_loaded;

// Function that loads the value of a key. Returns 0 when `*loaded` is filled in, or an error of
// the program's. It may use the cache, and load other keys; for its own key `floe_get_or_load`
// answers with `FLOE_STATUS_INVALID`. It must not throw or unwind.
typedef int32_t (*floe_load_fn)(void *context,
                                const void *key,
                                size_t key_len,
                                struct floe_loaded *loaded);

// Function that receives a value, which is valid during the call.
typedef void (*floe_read_fn)(void *context, const void *data, size_t len);

// A key of several.
typedef struct floe_bytes {
  // The first byte; may be NULL if there is none.
  const void *data;
  // The number of bytes.
  size_t len;
} floe_bytes;

// Function that receives the value of one of many keys, by the key's number. The value is valid
// during the call.
typedef void (*floe_read_many_fn)(void *context, size_t number, const void *data, size_t len);

// Function that receives an entry, which is valid during the call. Returns whether to continue.
typedef bool (*floe_entry_fn)(void *context,
                              const void *key,
                              size_t key_len,
                              const void *data,
                              size_t len);

// Counters of a cache since it was created, and the size of its content. Counts of other threads
// may be a moment late. A later version may have more fields at the end: see `floe_cache_stats`.
typedef struct floe_stats {
  // Lookups that found their key.
  uint64_t hits;
  // Lookups that did not find their key.
  uint64_t misses;
  // Hits on frozen entries, a part of `hits`.
  uint64_t frozen_hits;
  // Entries that were inserted.
  uint64_t insertions;
  // Values that replaced another value.
  uint64_t replacements;
  // Entries that were not inserted because there was no room for them.
  uint64_t rejections;
  // Entries that were evicted to make room.
  uint64_t evictions;
  // Entries that expired.
  uint64_t expirations;
  // Entries that were removed.
  uint64_t removals;
  // Loads that were started.
  uint64_t loads;
  // Loads that failed, a part of `loads`.
  uint64_t failed_loads;
  // Number of entries in the cache.
  uint64_t entries;
  // Sum of the charges of the entries; their number in a cache without a weight capacity.
  uint64_t weight;
  // Number of frozen entries, a part of `entries`.
  uint64_t frozen;
  // Entries that have left the cache and are not freed yet, including those with references.
  uint64_t waiting;
  // Memory of the cache and its entries in bytes, without memory that keys and values own.
  uint64_t memory_bytes;
} floe_stats;

// Function that frees an object. Any thread calls it, once and without locks, when the object has
// left the cache and has no handle. It may use the cache. It must not throw or unwind.
typedef void (*floe_host_free_fn)(const void *key, size_t key_len, void *object, void *context);

// Function that receives an object of the cache, which is valid during the call.
typedef void (*floe_host_see_fn)(void *seer,
                                 const void *key,
                                 size_t key_len,
                                 void *object,
                                 size_t charge,
                                 void *context);

// Figures of a cache in memory and on flash: counters since it was opened, and levels. Over all
// drives. A later version may have more fields at the end: see `floe_hybrid_stats`.
typedef struct floe_hybrid_figures {
  // Lookups that found the object in memory.
  uint64_t memory_hits;
  // Lookups that found the object on flash.
  uint64_t flash_hits;
  // Lookups that found the object neither in memory nor on flash.
  uint64_t misses;
  // Objects stored in memory, copies from flash included.
  uint64_t memory_insertions;
  // Objects written to flash after leaving memory.
  uint64_t flash_insertions;
  // Objects that left memory for others; flash may have them.
  uint64_t memory_evictions;
  // Objects that expired in memory.
  uint64_t memory_expirations;
  // Objects evicted with their segment, because they had not been used.
  uint64_t flash_evictions;
  // Used objects evicted with their segment, because there was no room to keep them.
  uint64_t flash_used_evictions;
  // Objects lost to a newer object whose key has the same tag in the index.
  uint64_t flash_collisions;
  // Objects appended again when their segment was evicted, because they had been used.
  uint64_t reinsertions;
  // Objects that memory evicted and whose options keep them off flash.
  uint64_t declined_by_options;
  // Objects not written to flash because the drive was too slow.
  uint64_t declined_behind;
  // Objects not written to flash because they were too large.
  uint64_t declined_too_large;
  // Objects not written to flash because the flash had failed.
  uint64_t declined_failed;
  // Objects not written to flash because the write budget was short.
  uint64_t declined_over_budget;
  // Objects not written to flash because they were requested too seldom.
  uint64_t declined_unpopular;
  // Objects not written to flash because writes slowed reads too much.
  uint64_t declined_write_cost;
  // Objects not written to flash because the objects in use fit into memory.
  uint64_t declined_fits_memory;
  // Objects not written to flash because their key was changed meanwhile.
  uint64_t superseded;
  // Reads of flash for lookups.
  uint64_t flash_reads;
  // Bytes read from flash for lookups, and for objects that are kept.
  uint64_t flash_read_bytes;
  // Reads of flash that failed.
  uint64_t failed_reads;
  // Records read whose checksum did not match.
  uint64_t damaged_records;
  // Values read that could not be decoded.
  uint64_t undecoded_values;
  // Reads of flash that found the record of another key.
  uint64_t mistaken_reads;
  // Bytes of records that producers appended to the log.
  uint64_t appended_bytes;
  // Bytes of records appended again when their segment was evicted.
  uint64_t reinserted_bytes;
  // Bytes written to flash, with footers, padding and the saved index.
  uint64_t written_bytes;
  // Objects in memory.
  uint64_t memory_objects;
  // Objects on flash.
  uint64_t flash_objects;
  // Bytes of the objects in memory.
  uint64_t memory_bytes;
  // Limit of the bytes of the objects in memory, which falls as the index grows.
  uint64_t memory_limit_bytes;
  // Memory of the index in bytes.
  uint64_t index_bytes;
  // Memory of the admission in bytes.
  uint64_t admission_bytes;
  // Size of the flash in bytes.
  uint64_t flash_bytes;
  // Number of segments of the flash.
  uint64_t segments;
  // Number of drives.
  uint64_t drives;
  // Number of drives whose part a failure has ended.
  uint64_t flash_failed;
} floe_hybrid_figures;

// Function called for each entry that leaves the cache. Key and value are valid during the call.
typedef void (*floe_left_fn)(void *context,
                             const void *key,
                             size_t key_len,
                             const void *data,
                             size_t len,
                             enum floe_cause cause);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of this thread's last failed call, a line of text. It is empty before the
// first failure, and valid until the thread's next failed call.
const char *floe_error_message(void);

// Returns the version of the library, such as "0.1.0".
const char *floe_version(void);

// Creates a cache, to be freed by `floe_cache_free`. Returns NULL if the options are invalid.
struct floe_cache *floe_cache_new(const struct floe_options *options);

// Frees a cache and its values, except values with references. No thread may use the cache during
// the call or later. NULL does nothing.
void floe_cache_free(struct floe_cache *cache);

// Inserts a copy of a value, replacing the present value of the key, if there is one. The charge
// is the length of key and value.
//
// The cache may decline an entry because of its admission policy, or because the entry is too
// heavy. This is no error.
enum floe_status floe_insert(const struct floe_cache *cache,
                             const void *key,
                             size_t key_len,
                             const void *data,
                             size_t len);

// Inserts a copy of a value, like `floe_insert`, with a charge (0 for the length of key and value)
// and a time to live in milliseconds (0 for that of the cache).
enum floe_status floe_insert_for(const struct floe_cache *cache,
                                 const void *key,
                                 size_t key_len,
                                 const void *data,
                                 size_t len,
                                 uint32_t charge,
                                 uint64_t live_ms);

// Inserts a value without copying it: the cache takes ownership of the memory. `free_data` is
// called once, when the value has left the cache and has no references. If the cache declines the
// value, that is at once. The memory must not be written any more, and any thread may read and
// free it. A charge of 0 stands for the length of key and value, a time to live of 0 for that of
// the cache.
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

// Removes a key. Returns `FLOE_STATUS_NOT_FOUND` if the key is absent.
enum floe_status floe_remove(const struct floe_cache *cache, const void *key, size_t key_len);

// Removes all entries.
enum floe_status floe_clear(const struct floe_cache *cache);

// Changes the capacity in entries. The cache must have been created with such a capacity.
enum floe_status floe_resize(const struct floe_cache *cache, size_t entries);

// Changes the capacity in weight. The cache must have been created with such a capacity.
enum floe_status floe_resize_weight(const struct floe_cache *cache, uint64_t weight);

// Frees all values that have left the cache and have no references. Caches do this by themselves,
// in batches; the function is for programs that wait for their `free_data`.
enum floe_status floe_reclaim(const struct floe_cache *cache);

// Looks a key up and loads it if it is absent, once for all threads that request it at the same
// time. The caller must release `*value`. If the loader fails, returns `FLOE_STATUS_LOAD_FAILED`
// and sets `*error`, unless NULL, to the loader's result.
//
// Loads that need each other's keys do not deadlock: the load that would close the cycle does not
// wait but loads by itself. A loader must not wait for another thread that requests its key.
//
// If the loader returns an invalid value, such as NULL with a length, the result is
// `FLOE_STATUS_INVALID`. Then nothing is stored, `free_data` is not called, and the next waiting
// thread calls its loader.
enum floe_status floe_get_or_load(const struct floe_cache *cache,
                                  const void *key,
                                  size_t key_len,
                                  floe_load_fn load,
                                  void *context,
                                  struct floe_value **value,
                                  int32_t *error);

// Looks a key up and returns a reference to its value in `*value`, which the caller must release.
// Takes a lock; `floe_read` and `floe_get_copy` do not. Returns `FLOE_STATUS_NOT_FOUND` if the key
// is absent.
enum floe_status floe_get(const struct floe_cache *cache,
                          const void *key,
                          size_t key_len,
                          struct floe_value **value);

// Looks a key up and copies its value to a buffer of `room` bytes. Sets `*len` to the length of
// the value. If the buffer is too small, nothing is copied, and the result is
// `FLOE_STATUS_TOO_SMALL`.
enum floe_status floe_get_copy(const struct floe_cache *cache,
                               const void *key,
                               size_t key_len,
                               void *buffer,
                               size_t room,
                               size_t *len);

// Looks a key up and passes its value to a function, which may use the cache and must not throw or
// unwind. The fastest way to read: a hit copies nothing, and with the default policy takes no
// lock.
enum floe_status floe_read(const struct floe_cache *cache,
                           const void *key,
                           size_t key_len,
                           floe_read_fn read,
                           void *context);

// Looks many keys up and passes the values found to a function, in order, like `floe_read`. Faster
// than single lookups if the cache is larger than the processor's caches. Sets `*found`, unless it
// is NULL, to the number of keys found.
enum floe_status floe_read_many(const struct floe_cache *cache,
                                const struct floe_bytes *keys,
                                size_t count,
                                floe_read_many_fn read,
                                void *context,
                                size_t *found);

// Returns whether a key is present. No hit is counted, and the eviction order does not change.
// Returns false if an argument is invalid.
bool floe_contains(const struct floe_cache *cache, const void *key, size_t key_len);

// Passes all entries to a function, in no particular order, until it returns false. An entry that
// is present throughout is passed once; one inserted or removed meanwhile may be passed. The
// function may use the cache, and must not throw or unwind.
enum floe_status floe_for_each(const struct floe_cache *cache, floe_entry_fn show, void *context);

// Fills in the counters of a cache. `size` is `sizeof(floe_stats)`: a program compiled with fewer
// fields gets only those. Visits all threads and locks: call it once a second rather than once a
// request.
enum floe_status floe_cache_stats(const struct floe_cache *cache,
                                  struct floe_stats *stats,
                                  size_t size);

// Returns the number of entries, 0 for NULL.
size_t floe_len(const struct floe_cache *cache);

// Creates a cache for a host, to be freed by `floe_host_free`. The options need a weight capacity;
// policy, shards and freezing also apply. Returns NULL if the options are invalid.
//
// With `strict`, an insertion fails if it would exceed the capacity because of objects with
// handles. Otherwise it exceeds the capacity.
struct floe_host *floe_host_new(const struct floe_options *options, bool strict);

// Frees a cache and its objects. No thread may use the cache or have a handle during the call or
// later. NULL does nothing.
void floe_host_free(struct floe_host *host);

// Inserts an object with its charge, replacing the present object of the key, which lives on with
// its handles. If the cache has no room, the object is not inserted: it is freed with its handle,
// or at once if there is none.
//
// `handle` is NULL, or receives a handle that the caller must release. `free_object` is called
// once with the key, the object and `context`; it may be NULL. Any thread may use and free the
// object.
//
// Returns `FLOE_STATUS_FULL` if the cache is strict and objects with handles fill it. On this or
// any other error the object still belongs to the program, and `free_object` is not called.
enum floe_status floe_host_insert(const struct floe_host *host,
                                  const void *key,
                                  size_t key_len,
                                  void *object,
                                  size_t charge,
                                  floe_host_free_fn free_object,
                                  void *context,
                                  enum floe_priority priority,
                                  struct floe_handle **handle);

// Looks a key up. Returns a handle that the caller must release, or NULL. Takes no lock; the first
// four handles of a thread write no memory that other threads write.
struct floe_handle *floe_host_lookup(const struct floe_host *host, const void *key, size_t key_len);

// Adds a reference to a handle, which must then be released once more. Returns whether that was
// possible.
bool floe_host_reference(const struct floe_host *host, struct floe_handle *handle);

// Releases a handle. With `erase`, and if no other handle is left, removes the entry if it is
// still there and frees the object. Returns whether it did. Takes no lock without `erase`.
bool floe_host_release(const struct floe_host *host, struct floe_handle *handle, bool erase);

// Returns the object of a handle.
void *floe_host_object(const struct floe_handle *handle);

// Returns the offset of the object in an entry, in bytes, with which C code reads the object
// without a call. A handle with the lowest bit set is the address of an entry plus 1; otherwise it
// points to a word that is.
size_t floe_host_object_offset(void);

// Returns the memory of an entry with a short key in bytes, for a host that adds it to charges.
size_t floe_host_entry_bytes(void);

// Returns the context that was passed with the object of a handle.
void *floe_host_context(const struct floe_handle *handle);

// Returns the charge of a handle's object.
size_t floe_host_charge(const struct floe_handle *handle);

// Removes a key; its handles keep the object. Returns `FLOE_STATUS_NOT_FOUND` if the key is
// absent.
enum floe_status floe_host_erase(const struct floe_host *host, const void *key, size_t key_len);

// Removes and frees every object without a handle.
enum floe_status floe_host_clear_unused(const struct floe_host *host);

// Passes all objects in the cache to a function, in no particular order and with no lock held. It
// may use the cache, and must not throw or unwind.
enum floe_status floe_host_for_each(const struct floe_host *host, floe_host_see_fn see, void *seer);

// Changes the capacity. Excess objects are evicted before this returns; objects with handles may
// exceed the capacity.
enum floe_status floe_host_set_capacity(const struct floe_host *host, size_t capacity);

// Changes whether an insertion fails if it would exceed the capacity.
enum floe_status floe_host_set_strict(const struct floe_host *host, bool strict);

// Returns whether an insertion fails if it would exceed the capacity.
bool floe_host_is_strict(const struct floe_host *host);

// Returns the capacity.
size_t floe_host_capacity(const struct floe_host *host);

// Returns the charge of all objects that are not freed yet.
size_t floe_host_usage(const struct floe_host *host);

// Returns the charge of all objects that have handles. Takes a lock that threads take when they
// begin or end.
size_t floe_host_pinned_usage(const struct floe_host *host);

// Fills in the counters of a cache for a host, like `floe_cache_stats`.
enum floe_status floe_host_stats(const struct floe_host *host,
                                 struct floe_stats *stats,
                                 size_t size);

// Frees objects that have left the cache and have no handle. Without this call they are freed in
// batches.
enum floe_status floe_host_reclaim(const struct floe_host *host);

// Creates a handle of an object that no lookup finds. The object counts in the cache's usage, and
// is freed with its last handle. All else is as for `floe_host_insert`, but `handle` must not be
// NULL.
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

// Closes a cache as `floe_hybrid_close` does, and frees it; errors of closing are lost. Values
// with references stay. No thread may use the cache during the call or later. In a child of
// `fork` the cache is not closed. NULL does nothing.
void floe_hybrid_free(struct floe_hybrid *cache);

// Writes the objects in memory to flash and closes the cache, so that the next opening finds all
// of them. Afterwards only objects in memory are found, until the cache is freed. Returns
// `FLOE_STATUS_FLASH_FAILED` if a drive fails; the next opening then finds what it can. Closing
// twice is allowed.
enum floe_status floe_hybrid_close(const struct floe_hybrid *cache);

// Sets `*opened` to the state in which the cache was found. Of several drives, one that was
// recovered counts.
enum floe_status floe_hybrid_opened(const struct floe_hybrid *cache, enum floe_opened *opened);

// Looks a key up in memory and on flash, and returns a reference to its value in `*value`, which
// the caller must release. Blocks while flash is read; `floe_hybrid_lookup_begin` does not. The
// value is not copied: the reference keeps the memory that it was read to. Returns
// `FLOE_STATUS_NOT_FOUND` if the key is absent, and also if its object is damaged or its drive has
// failed: see `floe_hybrid_flash_status`.
enum floe_status floe_hybrid_get(const struct floe_hybrid *cache,
                                 const void *key,
                                 size_t key_len,
                                 struct floe_value **value);

// Looks a key up like `floe_hybrid_get`, but without a trace: counts no hit and no use, and brings
// nothing to memory. For scans.
enum floe_status floe_hybrid_peek(const struct floe_hybrid *cache,
                                  const void *key,
                                  size_t key_len,
                                  struct floe_value **value);

// Returns whether memory or flash has an object of a key, without reading flash: true for about
// one absent key in some thousands, too. Returns false if an argument is invalid.
bool floe_hybrid_contains(const struct floe_hybrid *cache, const void *key, size_t key_len);

// Inserts a copy of a value, replacing the object of the key, if there is one. Sets `*inserted`,
// unless it is NULL, to the place of the object; a declined object is no error. Blocks while
// insertions are faster than the drive, unless the cache was opened not to wait. A time to live
// of 0 milliseconds stands for that of the cache.
enum floe_status floe_hybrid_insert(const struct floe_hybrid *cache,
                                    const void *key,
                                    size_t key_len,
                                    const void *data,
                                    size_t len,
                                    enum floe_placement placement,
                                    uint64_t live_ms,
                                    enum floe_inserted *inserted);

// Inserts a value like `floe_hybrid_insert`, but without copying it: the cache takes ownership of
// the memory, as `floe_insert_given` does, and calls `free_data` once, when neither the cache nor
// a reference has the value. It may be called before the function returns.
//
// On an error the memory still belongs to the program, and `free_data` is not called.
enum floe_status floe_hybrid_insert_given(const struct floe_hybrid *cache,
                                          const void *key,
                                          size_t key_len,
                                          void *data,
                                          size_t len,
                                          enum floe_placement placement,
                                          uint64_t live_ms,
                                          floe_free_fn free_data,
                                          void *context,
                                          enum floe_inserted *inserted);

// Removes a key, if it is there. A restart after a loss of power may bring the object back until
// `floe_hybrid_sync` has returned.
enum floe_status floe_hybrid_remove(const struct floe_hybrid *cache,
                                    const void *key,
                                    size_t key_len);

// Removes a key, and waits until no restart can bring its object back. Returns
// `FLOE_STATUS_FLASH_FAILED` if the object is gone, but the drive has failed and a restart may
// bring it back.
enum floe_status floe_hybrid_remove_durably(const struct floe_hybrid *cache,
                                            const void *key,
                                            size_t key_len);

// Removes all objects, in a time that does not depend on their number.
enum floe_status floe_hybrid_clear(const struct floe_hybrid *cache);

// Makes all earlier removals and replacements durable, and the objects that are on their way to
// flash. Objects that are in memory alone are not written.
enum floe_status floe_hybrid_sync(const struct floe_hybrid *cache);

// Returns `FLOE_STATUS_OK` while all drives work, and otherwise `FLOE_STATUS_FLASH_FAILED`;
// `floe_error_message` then names the drives that have failed, and why. The cache continues in
// memory and on the others. Visits all threads, as `floe_hybrid_stats` does.
enum floe_status floe_hybrid_flash_status(const struct floe_hybrid *cache);

// Opens the files of failed drives again. Memory and the other drives serve meanwhile. Blocks for
// as long as an opening after a crash. Returns `FLOE_STATUS_FLASH_FAILED` if a drive cannot be
// opened; the call can be repeated.
enum floe_status floe_hybrid_reopen_flash(const struct floe_hybrid *cache);

// Begins to look up many keys, which are copied, and returns the lookup in `*lookup`, to be freed
// by `floe_hybrid_lookup_free`. All reads of flash are submitted at once, before the function
// returns. Values found on flash are not copied to memory.
enum floe_status floe_hybrid_lookup_begin(const struct floe_hybrid *cache,
                                          const struct floe_bytes *keys,
                                          size_t count,
                                          struct floe_hybrid_lookup **lookup);

// Returns whether a lookup has ended, without blocking. A lookup of keys that are in memory or
// absent has ended at once. Returns false for NULL.
bool floe_hybrid_lookup_is_ready(struct floe_hybrid_lookup *lookup);

// Blocks until a lookup has ended. Several lookups may be waited for one after the other: their
// reads are in flight together.
enum floe_status floe_hybrid_lookup_wait(struct floe_hybrid_lookup *lookup);

// Returns a reference to the value of the key of this number, from 0 on, in `*value`, which the
// caller must release; it may outlive the lookup. Returns `FLOE_STATUS_NOT_FOUND` if the key is
// absent, and `FLOE_STATUS_INVALID` if the lookup has not ended.
enum floe_status floe_hybrid_lookup_value(const struct floe_hybrid_lookup *lookup,
                                          size_t number,
                                          struct floe_value **value);

// Frees a lookup, also one that has not ended. NULL does nothing.
void floe_hybrid_lookup_free(struct floe_hybrid_lookup *lookup);

// Fills in the figures of a cache. `size` is `sizeof(floe_hybrid_figures)`: a program compiled
// with fewer fields gets only those. Visits all threads and locks: call it once a second rather
// than once a request.
enum floe_status floe_hybrid_stats(const struct floe_hybrid *cache,
                                   struct floe_hybrid_figures *figures,
                                   size_t size);

// Returns new options, to be freed by `floe_options_free`. A cache needs a capacity in entries or
// in weight.
struct floe_options *floe_options_new(void);

// Frees options. Caches created from them are not affected. NULL does nothing.
void floe_options_free(struct floe_options *options);

// Sets the capacity in entries; 0 for no such limit.
enum floe_status floe_options_set_capacity(struct floe_options *options, size_t entries);

// Sets the capacity in weight, the sum of the charges of the entries. May be combined with a
// capacity in entries.
enum floe_status floe_options_set_weight_capacity(struct floe_options *options, uint64_t weight);

// Sets the eviction policy by name, such as "s3-fifo", "lru" or "slru:segments=2"; "qd-clock" by
// default.
enum floe_status floe_options_set_policy(struct floe_options *options, const char *policy);

// Sets the admission by name, such as "second-access" or "obp:target=0.2"; by default everything
// is admitted.
enum floe_status floe_options_set_admission(struct floe_options *options, const char *admission);

// Sets the time to live of entries in milliseconds, counted from insertion; 0 for no limit. More
// than 174 years count as no limit.
enum floe_status floe_options_set_time_to_live_ms(struct floe_options *options, uint64_t ms);

// Sets the time to idle of entries in milliseconds, counted from the last use; 0 for no limit.
// More than 174 years count as no limit.
enum floe_status floe_options_set_time_to_idle_ms(struct floe_options *options, uint64_t ms);

// Sets the number of shards, each with its own lock, a power of two; 0 for a number that suits the
// machine.
enum floe_status floe_options_set_shards(struct floe_options *options, size_t shards);

// Sets whether the hottest entries are frozen while that makes lookups faster.
enum floe_status floe_options_set_freezing(struct floe_options *options, bool freezing);

// Sets the shares of the capacity, from 0 to 1, that a cache for a host keeps for objects of high
// and of low priority; both are 0 by default.
//
// A full pool moves its oldest object to the next pool, or to where the policy places new objects,
// as one that was used once. So an object in a pool is never evicted directly.
enum floe_status floe_options_set_priority_pools(struct floe_options *options,
                                                 double high,
                                                 double low);

// Sets a function that is called for each entry that leaves the cache, with the cause. It is
// called by any thread, outside of locks, soon after; it may use the cache. It must not throw or
// unwind.
enum floe_status floe_options_set_listener(struct floe_options *options,
                                           floe_left_fn listener,
                                           void *context);

// Returns new options, to be freed by `floe_hybrid_options_free`. A cache needs memory and at
// least one drive.
struct floe_hybrid_options *floe_hybrid_options_new(void);

// Frees options. Caches opened with them are not affected. NULL does nothing.
void floe_hybrid_options_free(struct floe_hybrid_options *options);

// Sets the limit of memory in bytes: for the objects in memory, the segments being written, which
// take up to a quarter, and the index, 9 bytes for each object on flash. At least 64 MiB is
// recommended.
enum floe_status floe_hybrid_options_set_memory(struct floe_hybrid_options *options,
                                                uint64_t bytes);

// Adds a drive: a file or a block device, and the number of its bytes to use. A missing file is
// created; an existing one must have this size. The cache is striped over all drives that are
// added, up to 32. Their number must be the same each time, in any order.
enum floe_status floe_hybrid_options_add_flash(struct floe_hybrid_options *options,
                                               const char *path,
                                               uint64_t bytes);

// Sets the rule for the objects that are written to flash, by name: "everything", which is the
// default, "popularity", "obp", "small-bypass" or "tinylfu".
enum floe_status floe_hybrid_options_set_admission(struct floe_hybrid_options *options,
                                                   const char *admission);

// Limits the bytes written to flash, by a text such as "1 DWPD", "50 TB/year" or "40 MB/s". There
// is no limit by default.
enum floe_status floe_hybrid_options_set_write_budget(struct floe_hybrid_options *options,
                                                      const char *budget);

// Sets whether insertions wait while they are faster than the drive, which is the default.
// Otherwise objects without room are declined.
enum floe_status floe_hybrid_options_set_waiting(struct floe_hybrid_options *options, bool waiting);

// Sets the time to live of objects in milliseconds; 0 for no limit. On flash, times are rounded
// down to seconds, and are at least one second.
enum floe_status floe_hybrid_options_set_time_to_live_ms(struct floe_hybrid_options *options,
                                                         uint64_t ms);

// Sets the expected mean size of an object, key and value, in bytes; 0 for 16 KiB. The index is
// allocated for so many objects and need not grow.
enum floe_status floe_hybrid_options_set_object_bytes(struct floe_hybrid_options *options,
                                                      uint64_t bytes);

// Sets the compression of values on flash: "none", which is the default, or "lz4". Objects that
// are there already stay as they are, and are read.
enum floe_status floe_hybrid_options_set_compression(struct floe_hybrid_options *options,
                                                     const char *compression);

// Opens the cache that options describe, or creates it. Free it by `floe_hybrid_free`. Returns
// NULL on an error: `floe_error_message` names the path and the reason, and existing files stay as
// they were. A file is locked while it is open.
struct floe_hybrid *floe_hybrid_open(const struct floe_hybrid_options *options);

// Returns the address of a value's first byte, or NULL for NULL. The bytes must not be written,
// and are valid until the value is released. Threads: any.
const void *floe_value_data(const struct floe_value *value);

// Returns the length of a value in bytes, or 0 for NULL. Threads: any.
size_t floe_value_len(const struct floe_value *value);

// Releases a reference to a value, which must not be used afterwards. NULL does nothing. Threads:
// any, not only the one that got the reference. Allowed after the cache was freed.
void floe_value_release(struct floe_value *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FLOE_H */
