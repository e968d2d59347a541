// RocksDB's block cache on Floe. MIT OR Apache-2.0. See bindings/rocksdb/README.md.
//
//   #include <floe_rocksdb.hpp>                                   // and link with -lfloe
//   table_options.block_cache = floe::rocksdb::NewFloeCache(1 << 30);
//
// Header only, so that it is compiled with the headers and options of the program's own RocksDB.

#ifndef FLOE_ROCKSDB_HPP
#define FLOE_ROCKSDB_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <rocksdb/cache.h>
#include <rocksdb/version.h>

#include "floe.h"

// RocksDB's versions: all that this file has to know of them.
//   7         objects come with a function that deletes them
//   8.1       objects come with helpers, which tell more of them; objects by themselves
//   8.7       insertions may bring the compressed form, too, which this cache does not keep
//   9         second tiers as they are now; the interface changed with most versions before
//   9.7       ApplyToHandle, and caches that are made by name: see floe_rocksdb_uri.hpp
#define FLOE_ROCKSDB_VERSION (ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR)
#if FLOE_ROCKSDB_VERSION < 700 || FLOE_ROCKSDB_VERSION == 800
#error "floe_rocksdb.hpp is for RocksDB 7, and for 8.1 and later"
#endif
#define FLOE_ROCKSDB_HAS_HELPERS (FLOE_ROCKSDB_VERSION >= 801)
#define FLOE_ROCKSDB_HAS_TIERS (FLOE_ROCKSDB_VERSION >= 900)
#if FLOE_ROCKSDB_HAS_HELPERS
#include <rocksdb/advanced_cache.h>
#endif
#if FLOE_ROCKSDB_HAS_TIERS
#include <vector>

#include <rocksdb/secondary_cache.h>
#include <rocksdb/statistics.h>
#endif
#if FLOE_ROCKSDB_VERSION >= 807
#define FLOE_ROCKSDB_COMPRESSED \
  , const ::rocksdb::Slice& = ::rocksdb::Slice(), \
      ::rocksdb::CompressionType = ::rocksdb::CompressionType::kNoCompression
#else
#define FLOE_ROCKSDB_COMPRESSED
#endif

namespace floe {
namespace rocksdb {

/// Options of a block cache.
struct FloeCacheOptions {
  /// Bytes of blocks, and of whatever else RocksDB charges to the cache.
  size_t capacity = 32 << 20;
  /// The eviction policy, with parameters if need be: "lru", "s3-fifo", "slru:segments=2". Not the
  /// library's "qd-clock" by default: where a database is written, blocks change faster than it
  /// learns (docs/results/rocksdb.md). For databases that are hardly written "sieve" hits more.
  std::string policy = "clock:bits=2";
  /// Freezes the hottest blocks while that makes lookups faster. Off: hits of the default policy
  /// take no lock, so that freezing gains little there.
  bool freezing = false;
  /// Has insertions fail that would exceed the capacity because of blocks in use.
  bool strict_capacity_limit = false;
  /// The number of parts with a lock of their own, as a power of two; -1 for one that suits the
  /// machine.
  int num_shard_bits = -1;
  /// The share of the capacity that is kept for blocks of high priority, and that for low priority:
  /// see "Priorities" in the README.
  double high_pri_pool_ratio = 0.0;
  double low_pri_pool_ratio = 0.0;
  /// Charges the memory of Floe's entries to the cache, beside their blocks.
  ::rocksdb::CacheMetadataChargePolicy metadata_charge_policy =
      ::rocksdb::kDefaultCacheMetadataChargePolicy;
  /// Allocates RocksDB's blocks.
  std::shared_ptr<::rocksdb::MemoryAllocator> memory_allocator;
#if FLOE_ROCKSDB_HAS_TIERS
  /// A second tier below this cache, such as NewFloeSecondaryCache makes: for RocksDB 9 and later.
  std::shared_ptr<::rocksdb::SecondaryCache> secondary_cache;
#endif
};

/// A block cache on Floe: see NewFloeCache.
class FloeCache final : public ::rocksdb::Cache {
 public:
  FloeCache(floe_host* host, const FloeCacheOptions& options)
      : Cache(options.memory_allocator),
        host_(host),
        object_offset_(floe_host_object_offset()),
        entry_bytes_(options.metadata_charge_policy == ::rocksdb::kFullChargeCacheMetadata
                         ? floe_host_entry_bytes()
                         : 0),
#if FLOE_ROCKSDB_HAS_TIERS
        tier_(options.secondary_cache),
#endif
        policy_(options.policy) {
  }

  ~FloeCache() override {
    if (host_ != nullptr) floe_host_free(host_);
  }

  const char* Name() const override { return "FloeCache"; }

#if FLOE_ROCKSDB_HAS_HELPERS
  /// What RocksDB says of an object; stays as long as the cache.
  using About = const CacheItemHelper*;
#else
  using About = DeleterFn;
#endif

  ::rocksdb::Status Insert(const ::rocksdb::Slice& key, void* value, About about, size_t charge,
                           Handle** handle = nullptr,
                           Priority priority = Priority::LOW FLOE_ROCKSDB_COMPRESSED)
#if FLOE_ROCKSDB_HAS_HELPERS
      override
#endif
  {
    floe_handle* held = nullptr;
    const floe_status status = floe_host_insert(
        host_, key.data(), key.size(), value, charge + entry_bytes_, FreeOf(about),
        ContextOf(about), PriorityOf(priority), handle != nullptr ? &held : nullptr);
    if (status == FLOE_STATUS_OK) {
      if (handle != nullptr) *handle = reinterpret_cast<Handle*>(held);
      return ::rocksdb::Status::OK();
    }
    // With a place for a handle the value stays the caller's; without, it is as if evicted.
    if (handle != nullptr) {
      *handle = nullptr;
    } else if (status == FLOE_STATUS_FULL) {
      const floe_host_free_fn free = FreeOf(about);
      if (free != nullptr) free(key.data(), key.size(), value, ContextOf(about));
      return ::rocksdb::Status::OK();
    }
    return status == FLOE_STATUS_FULL
               ? ::rocksdb::Status::MemoryLimit("Insert failed: blocks in use fill the cache")
               : ::rocksdb::Status::InvalidArgument("FloeCache", floe_error_message());
  }

#if FLOE_ROCKSDB_HAS_TIERS
  Handle* Lookup(const ::rocksdb::Slice& key, const CacheItemHelper* about = nullptr,
                 CreateContext* context = nullptr, Priority priority = Priority::LOW,
                 ::rocksdb::Statistics* statistics = nullptr) override {
    Handle* const found = Find(key);
    if (found != nullptr || !HasTierFor(about)) return found;
    bool kept = false;
    const auto below = tier_->Lookup(key, about, context, /*wait=*/true,
                                     /*advise_erase=*/true, statistics, kept);
    return below != nullptr ? Promote(key, about, *below, kept, priority, statistics) : nullptr;
  }

  /// The lookups of a MultiGet, whose reads of the tier are under way together.
  void StartAsyncLookup(AsyncLookupHandle& lookup) override {
    lookup.result_handle = Find(lookup.key);
    if (lookup.result_handle != nullptr || !HasTierFor(lookup.helper)) return;
    lookup.kept_in_sec_cache = false;
    lookup.pending_handle =
        tier_
            ->Lookup(lookup.key, lookup.helper, lookup.create_context, /*wait=*/false,
                     /*advise_erase=*/true, lookup.stats, lookup.kept_in_sec_cache)
            .release();
    if (lookup.pending_handle != nullptr) lookup.pending_cache = tier_.get();
  }

  void WaitAll(AsyncLookupHandle* lookups, size_t count) override {
    std::vector<::rocksdb::SecondaryCacheResultHandle*> pending;
    const auto is_ours = [&](const AsyncLookupHandle& lookup) {
      return lookup.pending_cache != nullptr && lookup.pending_cache == tier_.get();
    };
    for (size_t at = 0; at < count; at++) {
      if (is_ours(lookups[at])) pending.push_back(lookups[at].pending_handle);
    }
    if (pending.empty()) return;
    tier_->WaitAll(pending);
    for (size_t at = 0; at < count; at++) {
      AsyncLookupHandle& lookup = lookups[at];
      if (!is_ours(lookup)) continue;
      const std::unique_ptr<::rocksdb::SecondaryCacheResultHandle> below(lookup.pending_handle);
      lookup.pending_handle = nullptr;
      lookup.pending_cache = nullptr;
      lookup.result_handle = Promote(lookup.key, lookup.helper, *below, lookup.kept_in_sec_cache,
                                     lookup.priority, lookup.stats);
    }
  }
#elif FLOE_ROCKSDB_HAS_HELPERS
  Handle* Lookup(const ::rocksdb::Slice& key, const CacheItemHelper* = nullptr,
                 CreateContext* = nullptr, Priority = Priority::LOW,
                 ::rocksdb::Statistics* = nullptr) override {
    return Find(key);
  }
#endif

#if FLOE_ROCKSDB_HAS_HELPERS

  Handle* CreateStandalone(const ::rocksdb::Slice& key, void* object, const CacheItemHelper* about,
                           size_t charge, bool allow_uncharged) override {
    floe_handle* held = nullptr;
    const auto make = [&](size_t charged) {
      return floe_host_stand_alone(host_, key.data(), key.size(), object, charged, FreeOf(about),
                                   ContextOf(about), &held) == FLOE_STATUS_OK;
    };
    if (!make(charge + entry_bytes_) && allow_uncharged) make(0);
    return reinterpret_cast<Handle*>(held);
  }

  const CacheItemHelper* GetCacheItemHelper(Handle* handle) const override {
    return AboutOf(floe_host_context(Of(handle)));
  }

  void ApplyToHandle(Cache*, Handle* handle,
                     const std::function<void(const ::rocksdb::Slice& key, void* object,
                                              size_t charge, const CacheItemHelper* about)>&
                         callback)
#if FLOE_ROCKSDB_VERSION >= 907
      override
#endif
  {
    size_t key_len = 0;
    const void* const key = floe_host_key(Of(handle), &key_len);
    callback(::rocksdb::Slice(static_cast<const char*>(key), key_len), Value(handle),
             GetCharge(handle), GetCacheItemHelper(handle));
  }
#else
  ::rocksdb::Status Insert(const ::rocksdb::Slice& key, void* value, size_t charge,
                           DeleterFn deleter, Handle** handle = nullptr,
                           Priority priority = Priority::LOW) override {
    return Insert(key, value, deleter, charge, handle, priority);
  }
  using Cache::Insert;

  Handle* Lookup(const ::rocksdb::Slice& key, ::rocksdb::Statistics* = nullptr) override {
    return Find(key);
  }
  using Cache::Lookup;

  DeleterFn GetDeleter(Handle* handle) const override {
    return AboutOf(floe_host_context(Of(handle)));
  }
#endif

  bool Ref(Handle* handle) override { return floe_host_reference(host_, Of(handle)); }

  bool Release(Handle* handle, bool erase_if_last_ref = false) override {
    return floe_host_release(host_, Of(handle), erase_if_last_ref);
  }
  using Cache::Release;

  void* Value(Handle* handle) override {
    const auto raw = reinterpret_cast<uintptr_t>(handle);
    const uintptr_t entry = ((raw & 1) != 0 ? raw : *reinterpret_cast<const uintptr_t*>(raw)) - 1;
    return *reinterpret_cast<void* const*>(entry + object_offset_);
  }

  void Erase(const ::rocksdb::Slice& key) override {
    floe_host_erase(host_, key.data(), key.size());
    floe_host_reclaim(host_);
#if FLOE_ROCKSDB_HAS_TIERS
    if (tier_ != nullptr) tier_->Erase(key);  // where the block may just have gone
#endif
  }

  uint64_t NewId() override { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  void SetCapacity(size_t capacity) override { floe_host_set_capacity(host_, capacity); }
  void SetStrictCapacityLimit(bool strict) override { floe_host_set_strict(host_, strict); }
  bool HasStrictCapacityLimit() const override { return floe_host_is_strict(host_); }
  size_t GetCapacity() const override { return floe_host_capacity(host_); }
  size_t GetUsage() const override { return floe_host_usage(host_); }
  size_t GetUsage(Handle* handle) const override { return floe_host_charge(Of(handle)); }
  size_t GetPinnedUsage() const override { return floe_host_pinned_usage(host_); }
  size_t GetCharge(Handle* handle) const override { return WithoutEntry(GetUsage(handle)); }

  size_t GetOccupancyCount() const override {
    floe_stats stats;
    floe_host_stats(host_, &stats, sizeof stats);
    return stats.entries;
  }

  /// Leaves all memory to the system, for a program that ends.
  void DisownData() override { host_ = nullptr; }

  void ApplyToAllEntries(const std::function<void(const ::rocksdb::Slice& key, void* value,
                                                  size_t charge, About about)>& callback,
                         const ApplyToAllEntriesOptions&) override {
    struct Seer {
      const FloeCache& cache;
      const std::function<void(const ::rocksdb::Slice&, void*, size_t, About)>& callback;
    } seer{*this, callback};
    floe_host_for_each(
        host_,
        [](void* seer, const void* key, size_t key_len, void* object, size_t charge,
           void* context) {
          const ::rocksdb::Slice slice(static_cast<const char*>(key), key_len);
          auto* const self = static_cast<Seer*>(seer);
          self->callback(slice, object, self->cache.WithoutEntry(charge),
                         self->cache.AboutOf(context));
        },
        &seer);
  }

  void EraseUnRefEntries() override { floe_host_clear_unused(host_); }

  std::string GetPrintableOptions() const override {
    return "    floe_policy: " + policy_ + "\n    capacity: " + std::to_string(GetCapacity()) +
           "\n    strict_capacity_limit: " + std::to_string(HasStrictCapacityLimit()) + "\n";
  }

  /// The counts of the cache, those of Floe's own among them.
  floe_stats Stats() const {
    floe_stats stats;
    floe_host_stats(host_, &stats, sizeof stats);
    return stats;
  }

 private:
  static floe_handle* Of(Handle* handle) { return reinterpret_cast<floe_handle*>(handle); }

  static floe_priority PriorityOf(Priority priority) {
    switch (priority) {
      case Priority::HIGH:
        return FLOE_PRIORITY_HIGH;
      case Priority::LOW:
        return FLOE_PRIORITY_LOW;
      default:
        return FLOE_PRIORITY_BOTTOM;
    }
  }

  Handle* Find(const ::rocksdb::Slice& key) {
    return reinterpret_cast<Handle*>(floe_host_lookup(host_, key.data(), key.size()));
  }

  /// The charge that RocksDB gave, of one with the entry's. An uncharged object has neither.
  size_t WithoutEntry(size_t charge) const {
    return charge > entry_bytes_ ? charge - entry_bytes_ : 0;
  }

#if FLOE_ROCKSDB_HAS_HELPERS
#if FLOE_ROCKSDB_HAS_TIERS
  bool HasTierFor(About about) const {
    return tier_ != nullptr && about != nullptr && about->create_cb != nullptr;
  }

  /// Brings the object of a lookup in the tier to this cache.
  Handle* Promote(const ::rocksdb::Slice& key, About about,
                  ::rocksdb::SecondaryCacheResultHandle& below, bool kept, Priority priority,
                  ::rocksdb::Statistics* statistics) {
    void* const object = below.Value();
    if (object == nullptr) return nullptr;
    if (statistics != nullptr) statistics->recordTick(::rocksdb::SECONDARY_CACHE_HITS);
    // What the tier keeps is not offered to it again.
    About const own = kept ? about->without_secondary_compat : about;
    Handle* handle = nullptr;
    if (!Insert(key, object, own, below.Size(), &handle, priority).ok()) {
      handle = CreateStandalone(key, object, own, below.Size(), /*allow_uncharged=*/true);
    }
    return handle;
  }

  bool HasTier() const { return tier_ != nullptr; }
  ::rocksdb::SecondaryCache* Tier() const { return tier_.get(); }
#else
  bool HasTier() const { return false; }
#endif

  /// What an object's end needs where the cache has an allocator or a tier. RocksDB has a few dozen
  /// helpers, so that a list serves; its members stay as long as the cache.
  struct Owned {
    About about;
    ::rocksdb::MemoryAllocator* allocator;
#if FLOE_ROCKSDB_HAS_TIERS
    ::rocksdb::SecondaryCache* tier;
#endif
    std::unique_ptr<Owned> rest;
  };

  bool NeedsOwned() const { return memory_allocator() != nullptr || HasTier(); }

  floe_host_free_fn FreeOf(About about) const {
    if (about == nullptr || about->del_cb == nullptr) return nullptr;
    return NeedsOwned() ? FreeOwned : FreePlain;
  }

  void* ContextOf(About about) {
    if (!NeedsOwned()) return const_cast<CacheItemHelper*>(about);
    const std::lock_guard<std::mutex> guard(owned_mutex_);
    for (Owned* each = owned_.get(); each != nullptr; each = each->rest.get()) {
      if (each->about == about) return each;
    }
#if FLOE_ROCKSDB_HAS_TIERS
    owned_.reset(new Owned{about, memory_allocator(), Tier(), std::move(owned_)});
#else
    owned_.reset(new Owned{about, memory_allocator(), std::move(owned_)});
#endif
    return owned_.get();
  }

  About AboutOf(void* context) const {
    return NeedsOwned() ? static_cast<Owned*>(context)->about : static_cast<About>(context);
  }

  static void FreePlain(const void*, size_t, void* object, void* context) {
    static_cast<About>(context)->del_cb(object, nullptr);
  }

  static void FreeOwned(const void* key, size_t key_len, void* object, void* context) {
    const Owned* const owned = static_cast<Owned*>(context);
#if FLOE_ROCKSDB_HAS_TIERS
    // Whatever has left the cache: evicted, or freed with the cache.
    if (owned->tier != nullptr && object != nullptr && owned->about->IsSecondaryCacheCompatible()) {
      owned->tier
          ->Insert(::rocksdb::Slice(static_cast<const char*>(key), key_len), object, owned->about,
                   /*force_insert=*/false)
          .PermitUncheckedError();
    }
#else
    (void)key, (void)key_len;
#endif
    owned->about->del_cb(object, owned->allocator);
  }

  std::mutex owned_mutex_;
  std::unique_ptr<Owned> owned_;
#else
  static floe_host_free_fn FreeOf(About about) { return about != nullptr ? Free : nullptr; }
  static void* ContextOf(About about) { return reinterpret_cast<void*>(about); }
  static About AboutOf(void* context) { return reinterpret_cast<About>(context); }

  static void Free(const void* key, size_t key_len, void* object, void* context) {
    AboutOf(context)(::rocksdb::Slice(static_cast<const char*>(key), key_len), object);
  }
#endif

  floe_host* host_;
  const size_t object_offset_;
  const size_t entry_bytes_;  // as far as they are charged
#if FLOE_ROCKSDB_HAS_TIERS
  const std::shared_ptr<::rocksdb::SecondaryCache> tier_;
#endif
  const std::string policy_;
  std::atomic<uint64_t> last_id_{0};
};

/// Makes a block cache. Returns null and, where `error` is given, why, if the options cannot be.
inline std::unique_ptr<FloeCache> MakeFloeCache(const FloeCacheOptions& options,
                                                std::string* error = nullptr) {
  const std::unique_ptr<floe_options, void (*)(floe_options*)> described(floe_options_new(),
                                                                         floe_options_free);
  floe_options* const all = described.get();
  const bool described_well =
      floe_options_set_weight_capacity(all, options.capacity) == FLOE_STATUS_OK &&
      floe_options_set_policy(all, options.policy.c_str()) == FLOE_STATUS_OK &&
      floe_options_set_freezing(all, options.freezing) == FLOE_STATUS_OK &&
      floe_options_set_priority_pools(all, options.high_pri_pool_ratio,
                                      options.low_pri_pool_ratio) == FLOE_STATUS_OK &&
      (options.num_shard_bits < 0 ||
       floe_options_set_shards(all, size_t{1} << (options.num_shard_bits & 31)) == FLOE_STATUS_OK);
  floe_host* const host =
      described_well ? floe_host_new(all, options.strict_capacity_limit) : nullptr;
  if (host == nullptr) {
    if (error != nullptr) *error = floe_error_message();
    return nullptr;
  }
  return std::unique_ptr<FloeCache>(new FloeCache(host, options));
}

/// Makes a block cache, as above, to be shared.
inline std::shared_ptr<FloeCache> NewFloeCache(const FloeCacheOptions& options,
                                               std::string* error = nullptr) {
  return MakeFloeCache(options, error);
}

/// Makes a block cache of so many bytes.
inline std::shared_ptr<FloeCache> NewFloeCache(size_t capacity) {
  FloeCacheOptions options;
  options.capacity = capacity;
  return NewFloeCache(options);
}

#undef FLOE_ROCKSDB_COMPRESSED

}  // namespace rocksdb
}  // namespace floe

#endif  // FLOE_ROCKSDB_HPP
