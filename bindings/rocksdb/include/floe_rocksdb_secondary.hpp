// RocksDB's second tier on Floe: blocks on an SSD below the block cache. MIT OR Apache-2.0. See
// bindings/rocksdb/README.md.
//
//   #include <floe_rocksdb_secondary.hpp>                         // and link with -lfloe
//   rocksdb::LRUCacheOptions cache;
//   cache.capacity = 1 << 30;
//   cache.secondary_cache = floe::rocksdb::NewFloeSecondaryCache("/mnt/nvme/blocks", 100ULL << 30);
//   table_options.block_cache = rocksdb::NewLRUCache(cache);
//
// Header only, so that it is compiled with the headers and options of the program's own RocksDB.

#ifndef FLOE_ROCKSDB_SECONDARY_HPP
#define FLOE_ROCKSDB_SECONDARY_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <rocksdb/cache.h>
#include <rocksdb/secondary_cache.h>
#include <rocksdb/version.h>

#include "floe.h"

// RocksDB's versions: 7.8 to 7.10 create objects by a function of the lookup, and 9 and later by a
// helper, with the compression of the block. The interface changed with most versions between.
#if ROCKSDB_MAJOR * 100 + ROCKSDB_MINOR < 708 || ROCKSDB_MAJOR == 8
#error "floe_rocksdb_secondary.hpp is for RocksDB 7.8 to 7.10, and for 9 and later"
#endif
#if ROCKSDB_MAJOR >= 9
#define FLOE_ROCKSDB_SECONDARY_SAVED 1
#include <rocksdb/advanced_cache.h>
#else
#define FLOE_ROCKSDB_SECONDARY_SAVED 0
#endif

namespace floe {
namespace rocksdb {

/// Options of a second tier.
struct FloeSecondaryCacheOptions {
  /// Memory in bytes: for the index, 9 bytes a block, for the segments being written, and for
  /// blocks that were found on flash twice.
  uint64_t memory = 64 << 20;
  /// More drives, each with the number of its bytes to use. Blocks are spread over all.
  std::vector<std::pair<std::string, uint64_t>> more_drives;
  /// The rule for the blocks that are written: "everything", "popularity", "obp", "small-bypass" or
  /// "tinylfu".
  std::string admission = "everything";
  /// A limit of the bytes written, such as "1 DWPD" or "40 MB/s"; empty for none.
  std::string write_budget;
  /// Compression of blocks that RocksDB gives uncompressed: "lz4" or "none".
  std::string compression = "lz4";
  /// Expected mean size of a stored block in bytes.
  uint64_t block_bytes = 4096;
  /// Has evictions from the primary cache wait while the drive is behind. Otherwise the blocks are
  /// dropped and counted.
  bool wait_for_drive = false;
#if FLOE_ROCKSDB_SECONDARY_SAVED
  /// Allocates the blocks that lookups create: the allocator of the primary cache.
  std::shared_ptr<::rocksdb::MemoryAllocator> memory_allocator;
#endif
};

/// A second tier on Floe: see NewFloeSecondaryCache.
class FloeSecondaryCache final : public ::rocksdb::SecondaryCache {
 public:
  using Slice = ::rocksdb::Slice;
  using Status = ::rocksdb::Status;
  using Helper = ::rocksdb::Cache::CacheItemHelper;
  using Handle = ::rocksdb::SecondaryCacheResultHandle;

  FloeSecondaryCache(floe_hybrid* hybrid, const FloeSecondaryCacheOptions& options)
      : hybrid_(hybrid), options_(options) {}

  /// Closes the tier, so that the next opening finds its blocks.
  ~FloeSecondaryCache() override { floe_hybrid_free(hybrid_); }

  const char* Name() const override { return "FloeSecondaryCache"; }

#if FLOE_ROCKSDB_SECONDARY_SAVED
  Status Insert(const Slice& key, ::rocksdb::Cache::ObjectPtr object, const Helper* helper,
                bool force_insert) override {
    (void)force_insert;  // the admission decides
    return Offer(key, object, helper, options_.wait_for_drive);
  }

  /// Stores a block as it is, compressed or not.
  Status InsertSaved(const Slice& key, const Slice& saved,
                     ::rocksdb::CompressionType type = ::rocksdb::CompressionType::kNoCompression,
                     ::rocksdb::CacheTier source = ::rocksdb::CacheTier::kVolatileTier) override {
    if (floe_hybrid_contains(hybrid_, key.data(), key.size())) return Status::OK();
    Record record(saved.size(), static_cast<unsigned char>(type),
                  static_cast<unsigned char>(source));
    std::memcpy(record.Block(), saved.data(), saved.size());
    return Put(key, record, options_.wait_for_drive);
  }

  std::unique_ptr<Handle> Lookup(const Slice& key, const Helper* helper,
                                 ::rocksdb::Cache::CreateContext* context, bool wait,
                                 bool advise_erase, ::rocksdb::Statistics*, bool& kept) override {
    (void)advise_erase;  // the tier keeps its blocks for the next start
    kept = false;
    if (helper == nullptr || helper->create_cb == nullptr) return nullptr;
    return Find(key, wait, Creation{helper, context, options_.memory_allocator.get()});
  }
#else
  Status Insert(const Slice& key, void* object, const Helper* helper) override {
    return Offer(key, object, helper, options_.wait_for_drive || saving_);
  }

  std::unique_ptr<Handle> Lookup(const Slice& key,
                                 const ::rocksdb::Cache::CreateCallback& create_cb, bool wait,
                                 bool advise_erase, bool& is_in_sec_cache) override {
    (void)advise_erase;  // the tier keeps its blocks for the next start
    is_in_sec_cache = false;
    return Find(key, wait, Creation{create_cb});
  }
#endif
  // Lookups say of no block that the tier keeps it. So the primary cache offers it again when it
  // evicts it, and Insert writes it if flash has evicted it meanwhile.

  /// False: a hit moves to the primary cache at once, and the tier keeps its copy.
  bool SupportForceErase() const override { return false; }

  void Erase(const Slice& key) override { floe_hybrid_remove(hybrid_, key.data(), key.size()); }

  void WaitAll(std::vector<Handle*> handles) override {
    for (Handle* const handle : handles) handle->Wait();  // their reads are under way together
  }

  /// The bytes of flash.
  Status GetCapacity(size_t& capacity) override {
    capacity = static_cast<size_t>(Stats().flash_bytes);
    return Status::OK();
  }

  std::string GetPrintableOptions() const override {
    return "    floe_flash_bytes: " + std::to_string(Stats().flash_bytes) +
           "\n    floe_memory: " + std::to_string(options_.memory) +
           "\n    floe_drives: " + std::to_string(options_.more_drives.size() + 1) +
           "\n    floe_admission: " + options_.admission +
           "\n    floe_write_budget: " + options_.write_budget +
           "\n    floe_compression: " + options_.compression +
           "\n    floe_wait_for_drive: " + std::to_string(options_.wait_for_drive) + "\n";
  }

  /// Writes the blocks of a primary cache that are not in use to the tier, and waits for the drive.
  /// For the end of a program, after its databases are closed: blocks reach the tier when the
  /// primary cache evicts them, so that the hottest ones are not there. RocksDB 7's primary cache,
  /// an LRUCache, is empty afterwards.
  Status Save(::rocksdb::Cache& primary) {
#if FLOE_ROCKSDB_SECONDARY_SAVED
    Status result;
    primary.ApplyToAllEntries(
        [&](const Slice& key, ::rocksdb::Cache::ObjectPtr object, size_t, const Helper* helper) {
          if (object == nullptr || helper == nullptr || !result.ok()) return;
          if (helper->IsSecondaryCacheCompatible()) result = Offer(key, object, helper, true);
        },
        {});
    if (!result.ok()) return result;
#else
    const size_t capacity = primary.GetCapacity();
    saving_ = true;
    primary.SetCapacity(0);
    saving_ = false;
    primary.SetCapacity(capacity);
#endif
    return StatusOf(floe_hybrid_sync(hybrid_));
  }

  /// The figures of the tier.
  floe_hybrid_figures Stats() const {
    floe_hybrid_figures figures;
    floe_hybrid_stats(hybrid_, &figures, sizeof figures);
    return figures;
  }

 private:
  /// A block with what is needed to read it, as it is stored. RocksDB's version is part of it: a
  /// block of another version counts as absent.
  class Record {
   public:
    static constexpr size_t kHead = 4;

    Record(size_t block, unsigned char type, unsigned char source)
        : size_(kHead + block), bytes_(new char[size_]) {
      const unsigned char head[kHead] = {type, source, ROCKSDB_MAJOR, ROCKSDB_MINOR};
      std::memcpy(bytes_.get(), head, kHead);
    }

    char* Block() { return bytes_.get() + kHead; }
    const char* Bytes() const { return bytes_.get(); }
    size_t Size() const { return size_; }

   private:
    const size_t size_;
    const std::unique_ptr<char[]> bytes_;
  };

  /// What makes an object of a block.
  struct Creation {
#if FLOE_ROCKSDB_SECONDARY_SAVED
    const Helper* helper;
    ::rocksdb::Cache::CreateContext* context;
    ::rocksdb::MemoryAllocator* allocator;
#else
    ::rocksdb::Cache::CreateCallback create_cb;
#endif

    bool Create(const unsigned char* record, size_t size, void** object, size_t* charge) const {
      if (size < Record::kHead || record[2] != ROCKSDB_MAJOR || record[3] != ROCKSDB_MINOR) {
        return false;
      }
      const char* const block = reinterpret_cast<const char*>(record) + Record::kHead;
      const size_t bytes = size - Record::kHead;
#if FLOE_ROCKSDB_SECONDARY_SAVED
      return helper
          ->create_cb(Slice(block, bytes), static_cast<::rocksdb::CompressionType>(record[0]),
                      static_cast<::rocksdb::CacheTier>(record[1]), context, allocator, object,
                      charge)
          .ok();
#else
      return create_cb(block, bytes, object, charge).ok();
#endif
    }
  };

  /// A lookup, which waits for flash as long as it has `lookup_`.
  class Result final : public Handle {
   public:
    Result(floe_hybrid* hybrid, const Slice& key, Creation creation)
        : hybrid_(hybrid), key_(key.ToString()), creation_(std::move(creation)) {}

    ~Result() override { floe_hybrid_lookup_free(lookup_); }
    Result(const Result&) = delete;
    Result& operator=(const Result&) = delete;

    /// Begins the lookup. Returns whether there may be a block.
    bool Begin(bool wait) {
      if (wait) {
        floe_value* value = nullptr;
        floe_hybrid_get(hybrid_, key_.data(), key_.size(), &value);
        Take(value);
        return object_ != nullptr;
      }
      const floe_bytes asked = {key_.data(), key_.size()};
      if (floe_hybrid_lookup_begin(hybrid_, &asked, 1, &lookup_) != FLOE_STATUS_OK) return false;
      return !IsReady() || object_ != nullptr;
    }

    bool IsReady() override {
      if (lookup_ != nullptr && floe_hybrid_lookup_is_ready(lookup_)) End();
      return lookup_ == nullptr;
    }

    void Wait() override {
      if (lookup_ == nullptr) return;
      floe_hybrid_lookup_wait(lookup_);
      End();
    }

    void* Value() override { return object_; }
    size_t Size() override { return charge_; }

   private:
    void End() {
      floe_value* value = nullptr;
      floe_hybrid_lookup_value(lookup_, 0, &value);
      floe_hybrid_lookup_free(lookup_);
      lookup_ = nullptr;
      Take(value);
    }

    /// Makes the object of a block. A block that cannot be used leaves the tier.
    void Take(floe_value* value) {
      if (value == nullptr) return;
      const auto* const record = static_cast<const unsigned char*>(floe_value_data(value));
      if (!creation_.Create(record, floe_value_len(value), &object_, &charge_)) {
        object_ = nullptr;
        charge_ = 0;
        floe_hybrid_remove(hybrid_, key_.data(), key_.size());
      }
      floe_value_release(value);
    }

    floe_hybrid* const hybrid_;
    const std::string key_;
    const Creation creation_;
    floe_hybrid_lookup* lookup_ = nullptr;
    void* object_ = nullptr;
    size_t charge_ = 0;
  };

  std::unique_ptr<Handle> Find(const Slice& key, bool wait, Creation creation) {
    std::unique_ptr<Result> result(new Result(hybrid_, key, std::move(creation)));
    if (!result->Begin(wait)) return nullptr;
    return result;
  }

  /// Writes an object to the tier, unless it is there. Its key is that of its bytes: RocksDB's keys
  /// are never used for other ones.
  Status Offer(const Slice& key, void* object, const Helper* helper, bool wait) {
    if (helper == nullptr || helper->size_cb == nullptr || helper->saveto_cb == nullptr) {
      return Status::InvalidArgument("FloeSecondaryCache", "the object cannot be saved");
    }
    if (floe_hybrid_contains(hybrid_, key.data(), key.size())) return Status::OK();
    const size_t size = helper->size_cb(object);
    Record record(size, 0, 0);  // uncompressed, of the primary cache
    const Status saved = helper->saveto_cb(object, 0, size, record.Block());
    return saved.ok() ? Put(key, record, wait) : saved;
  }

  Status Put(const Slice& key, const Record& record, bool wait) {
    while (true) {
      floe_inserted inserted = FLOE_INSERTED_OTHER;
      const floe_status status =
          floe_hybrid_insert(hybrid_, key.data(), key.size(), record.Bytes(), record.Size(),
                             FLOE_PLACEMENT_TO_FLASH, 0, &inserted);
      if (status != FLOE_STATUS_OK) return StatusOf(status);
      // A block that was declined is no error.
      if (inserted != FLOE_INSERTED_BEHIND || !wait) return Status::OK();
      const floe_status synced = floe_hybrid_sync(hybrid_);
      if (synced != FLOE_STATUS_OK) return StatusOf(synced);
    }
  }

  static Status StatusOf(floe_status status) {
    if (status == FLOE_STATUS_OK) return Status::OK();
    return status == FLOE_STATUS_INVALID
               ? Status::InvalidArgument("FloeSecondaryCache", floe_error_message())
               : Status::IOError("FloeSecondaryCache", floe_error_message());
  }

  floe_hybrid* const hybrid_;
  const FloeSecondaryCacheOptions options_;
#if !FLOE_ROCKSDB_SECONDARY_SAVED
  std::atomic<bool> saving_{false};
#endif
};

/// Opens a second tier in a file or on a block device, or creates it, with so many bytes of it.
/// Returns null and, where `error` is given, why, if it cannot be opened. The file is locked while
/// the tier is open. Its blocks are there again after a restart.
inline std::shared_ptr<FloeSecondaryCache> NewFloeSecondaryCache(
    const std::string& path, uint64_t bytes,
    const FloeSecondaryCacheOptions& options = FloeSecondaryCacheOptions(),
    std::string* error = nullptr) {
  const std::unique_ptr<floe_hybrid_options, void (*)(floe_hybrid_options*)> described(
      floe_hybrid_options_new(), floe_hybrid_options_free);
  floe_hybrid_options* const all = described.get();
  bool described_well =
      floe_hybrid_options_set_memory(all, options.memory) == FLOE_STATUS_OK &&
      floe_hybrid_options_add_flash(all, path.c_str(), bytes) == FLOE_STATUS_OK &&
      floe_hybrid_options_set_admission(all, options.admission.c_str()) == FLOE_STATUS_OK &&
      floe_hybrid_options_set_compression(all, options.compression.c_str()) == FLOE_STATUS_OK &&
      floe_hybrid_options_set_object_bytes(all, options.block_bytes) == FLOE_STATUS_OK &&
      floe_hybrid_options_set_waiting(all, options.wait_for_drive) == FLOE_STATUS_OK &&
      (options.write_budget.empty() ||
       floe_hybrid_options_set_write_budget(all, options.write_budget.c_str()) == FLOE_STATUS_OK);
  for (const auto& drive : options.more_drives) {
    const char* const more = drive.first.c_str();
    described_well = described_well &&
                     floe_hybrid_options_add_flash(all, more, drive.second) == FLOE_STATUS_OK;
  }
  floe_hybrid* const hybrid = described_well ? floe_hybrid_open(all) : nullptr;
  if (hybrid == nullptr) {
    if (error != nullptr) *error = floe_error_message();
    return nullptr;
  }
  return std::make_shared<FloeSecondaryCache>(hybrid, options);
}

}  // namespace rocksdb
}  // namespace floe

#endif  // FLOE_ROCKSDB_SECONDARY_HPP
