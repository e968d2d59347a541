// The database of the benchmark and the block caches that it is served with.

#ifndef FLOE_YCSB_DATABASE_HPP
#define FLOE_YCSB_DATABASE_HPP

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>

#include "floe_rocksdb_secondary.hpp"
#include "floe_rocksdb_uri.hpp"
#include "record.hpp"

namespace ycsb {

constexpr size_t kBlockBytes = 4096;

/// Ends the program unless the status is good.
inline void Need(const rocksdb::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "ycsb: cannot %s: %s\n", what, status.ToString().c_str());
  std::exit(1);
}

constexpr const char* kCaches[] = {
    "floe", "floe-lru", "floe-lru-freezing", "lru", "hyper-clock",
#if FLOE_ROCKSDB_VERSION >= 807
    "hyper-clock-auto",
#endif
};

/// The second tier of caches such as "lru+obp".
struct Tier {
  /// Its file, which must not be there yet.
  std::string path;
  uint64_t bytes;
};

/// Makes the second tier of a name: RocksDB's in memory is "compressed", and Floe's on flash has the
/// name of its admission. Null if there is none of it.
inline std::shared_ptr<rocksdb::SecondaryCache> NewTier(const std::string& name, const Tier& tier) {
  if (name == "compressed") {
    rocksdb::CompressedSecondaryCacheOptions options;
    options.capacity = tier.bytes;
    return rocksdb::NewCompressedSecondaryCache(options);
  }
  floe::rocksdb::FloeSecondaryCacheOptions options;
  options.admission = name;
  std::string error;
  auto made = floe::rocksdb::NewFloeSecondaryCache(tier.path, tier.bytes, options, &error);
  if (made == nullptr) std::fprintf(stderr, "ycsb: %s\n", error.c_str());
  return made;
}

/// Makes the block cache of a name, or of a text such as "floe://policy=sieve"; null if there is
/// none of it. "lru+NAME" is RocksDB's LRUCache above the second tier of a name. "lru-plain" is
/// LRUCache as one list: by default half of it is for blocks that were hit or have high priority.
inline std::shared_ptr<rocksdb::Cache> NewCache(const std::string& name, size_t capacity,
                                                const Tier& tier) {
#if FLOE_ROCKSDB_VERSION >= 807
  if (name == "hyper-clock-auto") {
    return rocksdb::HyperClockCacheOptions(capacity, 0).MakeSharedCache();
  }
#endif
  if (name.compare(0, 4, "lru+") == 0) {
    rocksdb::LRUCacheOptions options;
    options.capacity = capacity;
    options.secondary_cache = NewTier(name.substr(4), tier);
    return options.secondary_cache != nullptr ? rocksdb::NewLRUCache(options) : nullptr;
  }
  if (name == "lru") return rocksdb::NewLRUCache(capacity);
  if (name == "lru-plain") {
    rocksdb::LRUCacheOptions options;
    options.capacity = capacity;
    options.high_pri_pool_ratio = 0;
    return rocksdb::NewLRUCache(options);
  }
  if (name == "hyper-clock") {
    return rocksdb::HyperClockCacheOptions(capacity, kBlockBytes).MakeSharedCache();
  }
  floe::rocksdb::FloeCacheOptions options;
  options.capacity = capacity;
  if (floe::rocksdb::ReadFloeCacheOptions(name, &options)) {
    return floe::rocksdb::NewFloeCache(options);
  }
  if (name == "floe-lru" || name == "floe-lru-freezing") {
    options.policy = "lru";
  } else if (name != "floe") {
    return nullptr;
  }
  options.freezing = name == "floe-lru-freezing";
  return floe::rocksdb::NewFloeCache(options);
}

/// Opens the database. With `direct` it reads and writes its files past the page cache. `uncache`
/// is RocksDB's `uncache_aggressiveness`, from 9.4 on.
inline std::unique_ptr<rocksdb::DB> Open(
    const std::string& folder, bool direct, std::shared_ptr<rocksdb::Cache> cache = nullptr,
    std::shared_ptr<rocksdb::Statistics> statistics = nullptr,
    [[maybe_unused]] uint64_t uncache = 0) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  table.no_block_cache = table.block_cache == nullptr;
  table.block_size = kBlockBytes;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.use_direct_reads = direct;
  options.use_direct_io_for_flush_and_compaction = direct;
  options.statistics = std::move(statistics);
#if FLOE_ROCKSDB_VERSION >= 904
  options.uncache_aggressiveness = static_cast<uint32_t>(uncache);
#endif
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
#if ROCKSDB_MAJOR >= 10
  std::unique_ptr<rocksdb::DB> opened;
  Need(rocksdb::DB::Open(options, folder, &opened), "open the database");
  return opened;
#else
  rocksdb::DB* opened = nullptr;
  Need(rocksdb::DB::Open(options, folder, &opened), "open the database");
  return std::unique_ptr<rocksdb::DB>(opened);
#endif
}

/// Writes all records in version 0 to a new database and compacts it.
inline void Load(const std::string& folder, uint64_t records, size_t value_bytes) {
  auto db = Open(folder, false);
  rocksdb::WriteOptions write;
  write.disableWAL = true;
  std::string key(kKeyBytes, ' '), value;
  for (uint64_t number = 0; number < records; number++) {
    WriteKey(number, &key[0]);
    WriteValue(number, 0, value_bytes, value);
    Need(db->Put(write, key, value), "load the database");
  }
  Need(db->Flush(rocksdb::FlushOptions()), "load the database");
  Need(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr), "compact the database");
}

/// Copies the database, by links to its files. Returns the bytes of these files.
inline uint64_t Copy(const std::string& folder, const std::string& copy) {
  auto db = Open(folder, false);
  rocksdb::Checkpoint* made = nullptr;
  Need(rocksdb::Checkpoint::Create(db.get(), &made), "copy the database");
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  Need(checkpoint->CreateCheckpoint(copy), "copy the database");
  uint64_t bytes = 0;
  db->GetIntProperty(rocksdb::DB::Properties::kTotalSstFilesSize, &bytes);
  return bytes;
}

}  // namespace ycsb

#endif  // FLOE_YCSB_DATABASE_HPP
