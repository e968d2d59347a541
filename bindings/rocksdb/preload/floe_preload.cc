// Gives a program that uses a shared RocksDB Floe's caches, without building it anew. MIT OR
// Apache-2.0.
//
//   c++ -std=c++17 -O2 -fPIC -shared -I bindings/c/include -I bindings/rocksdb/include
//       bindings/rocksdb/preload/floe_preload.cc target/release/libfloe_c.a
//       -Wl,--exclude-libs,ALL -o libfloe_rocksdb_preload.so
//   LD_PRELOAD=$PWD/libfloe_rocksdb_preload.so db_bench ...
//
// Every cache that the program or RocksDB makes as an LRUCache or a HyperClockCache is one of
// Floe's, with the capacity and the limits that they ask for. FLOE_ROCKSDB_CACHE changes them and
// says the rest, as in FLOE_ROCKSDB_CACHE='floe://policy=lru;freezing=true'. With RocksDB 9.7 and
// later texts such as --cache_uri=floe://1GiB make caches, too.
//
// It is compiled with the headers of the program's RocksDB. A program into which RocksDB is linked
// cannot be changed like this.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "floe_rocksdb_uri.hpp"

namespace {

using floe::rocksdb::FloeCacheOptions;

std::shared_ptr<rocksdb::Cache> Make(FloeCacheOptions options) {
  std::string error;
  const char* const text = std::getenv("FLOE_ROCKSDB_CACHE");
  std::shared_ptr<rocksdb::Cache> cache;
  if (text == nullptr || floe::rocksdb::ReadFloeCacheOptions(text, &options, &error)) {
    cache = floe::rocksdb::NewFloeCache(options, &error);
  }
  if (cache == nullptr && text != nullptr) {
    std::fprintf(stderr, "FLOE_ROCKSDB_CACHE=%s: %s\n", text, error.c_str());
    std::exit(2);
  }
  return cache;
}

FloeCacheOptions Of(const rocksdb::ShardedCacheOptions& asked) {
  FloeCacheOptions options;
  options.capacity = asked.capacity;
  options.strict_capacity_limit = asked.strict_capacity_limit;
  options.memory_allocator = asked.memory_allocator;
  options.metadata_charge_policy = asked.metadata_charge_policy;
  return options;  // the number of shards is one that suits Floe
}

std::shared_ptr<rocksdb::Cache> OfLru(const rocksdb::LRUCacheOptions& asked) {
  FloeCacheOptions options = Of(asked);
  options.high_pri_pool_ratio = asked.high_pri_pool_ratio;
  options.low_pri_pool_ratio = asked.low_pri_pool_ratio;
  return Make(options);
}

#if FLOE_ROCKSDB_VERSION >= 907
const bool registered = [] {
  floe::rocksdb::RegisterFloeCache();
  return true;
}();
#endif

}  // namespace

namespace rocksdb {

#if FLOE_ROCKSDB_VERSION >= 803
std::shared_ptr<Cache> LRUCacheOptions::MakeSharedCache() const { return OfLru(*this); }
#else
std::shared_ptr<Cache> NewLRUCache(const LRUCacheOptions& asked) { return OfLru(asked); }

std::shared_ptr<Cache> NewLRUCache(size_t capacity, int num_shard_bits, bool strict,
                                   double high_pri_pool_ratio,
                                   std::shared_ptr<MemoryAllocator> memory_allocator,
                                   bool use_adaptive_mutex,
                                   CacheMetadataChargePolicy metadata_charge_policy,
                                   double low_pri_pool_ratio) {
  return OfLru(LRUCacheOptions(capacity, num_shard_bits, strict, high_pri_pool_ratio,
                               std::move(memory_allocator), use_adaptive_mutex,
                               metadata_charge_policy, low_pri_pool_ratio));
}
#endif

std::shared_ptr<Cache> HyperClockCacheOptions::MakeSharedCache() const { return Make(Of(*this)); }

}  // namespace rocksdb
