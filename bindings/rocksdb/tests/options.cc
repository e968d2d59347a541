// Options of a cache: pools for priorities, and caches from text as RocksDB makes them.

#include <cstdio>
#include <string>

#include <rocksdb/convenience.h>
#include <rocksdb/table.h>

#include "floe_rocksdb_uri.hpp"
#include "testing.hpp"

namespace {

using floe::rocksdb::FloeCache;
using floe::rocksdb::FloeCacheOptions;
using rocksdb::Cache;

/// Inserts an entry of charge 10 that owns nothing.
void Put(FloeCache& cache, const std::string& key, Cache::Priority priority) {
  CHECK(cache.Insert(key, nullptr, static_cast<FloeCache::About>(nullptr), 10, nullptr, priority)
            .ok());
}

bool Has(FloeCache& cache, const std::string& key) {
  Cache::Handle* const handle = cache.Lookup(key);
  if (handle != nullptr) cache.Release(handle);
  return handle != nullptr;
}

FloeCacheOptions Small() {
  FloeCacheOptions options = Uncharged(1000);
  options.num_shard_bits = 0;
  return options;
}

void APoolKeepsWhatHasItsPriority(const char* policy) {
  FloeCacheOptions options = Small();
  options.policy = policy;
  options.high_pri_pool_ratio = 0.5;
  options.low_pri_pool_ratio = 0.2;
  auto cache = floe::rocksdb::NewFloeCache(options);
  for (int at = 0; at < 40; at++) Put(*cache, "high " + std::to_string(at), Cache::Priority::HIGH);
  for (int at = 0; at < 10; at++) Put(*cache, "low " + std::to_string(at), Cache::Priority::LOW);
  // Each is read again and again, as in a scan that returns.
  for (int round = 0; round < 3; round++) {
    for (int at = 0; at < 200; at++) {
      const std::string key = "bottom " + std::to_string(at);
      if (!Has(*cache, key)) Put(*cache, key, Cache::Priority::BOTTOM);
    }
  }
  for (int at = 0; at < 40; at++) CHECK(Has(*cache, "high " + std::to_string(at)));
  for (int at = 0; at < 10; at++) CHECK(Has(*cache, "low " + std::to_string(at)));
  for (int at = 0; at < 400; at++) Put(*cache, "more " + std::to_string(at), Cache::Priority::LOW);
  for (int at = 0; at < 40; at++) CHECK(Has(*cache, "high " + std::to_string(at)));
  CHECK(!Has(*cache, "low 0") && cache->GetUsage() <= 1000);
  // More than the pool holds, which have been used: the oldest of them go on as others do.
  for (int at = 0; at < 400; at++) Put(*cache, "new " + std::to_string(at), Cache::Priority::HIGH);
  CHECK(!Has(*cache, "high 0") && Has(*cache, "new 399") && cache->GetUsage() <= 1000);
}

void PoolsThatCannotBeAreRefused() {
  FloeCacheOptions options = Small();
  options.high_pri_pool_ratio = 0.7;
  options.low_pri_pool_ratio = 0.4;
  std::string error;
  CHECK(floe::rocksdb::NewFloeCache(options, &error) == nullptr);
  CHECK(error.find("0.7") != std::string::npos);
}

void TextIsRead() {
  FloeCacheOptions options;
  std::string error;
  const auto read = [&](const char* text) {
    options = FloeCacheOptions();
    error.clear();
    return floe::rocksdb::ReadFloeCacheOptions(text, &options, &error);
  };
  CHECK(read("floe://") && options.capacity == 32 << 20);
  CHECK(read("floe://4096") && options.capacity == 4096);
  CHECK(read("floe://1.5GiB") && options.capacity == size_t{3} << 29);
  CHECK(read("floe://capacity=2K&policy=lru") && options.capacity == 2048);
  CHECK(read("floe://capacity=64K;policy=slru:segments=2;freezing=true;num_shard_bits=3;"
             "strict_capacity_limit=true;high_pri_pool_ratio=0.25;low_pri_pool_ratio=0.5;"
             "metadata_charge_policy=kDontChargeCacheMetadata"));
  CHECK(options.capacity == 64 << 10 && options.policy == "slru:segments=2" && options.freezing);
  CHECK(options.num_shard_bits == 3 && options.strict_capacity_limit);
  CHECK(options.high_pri_pool_ratio == 0.25 && options.low_pri_pool_ratio == 0.5);
  CHECK(options.metadata_charge_policy == rocksdb::kDontChargeCacheMetadata);
  const char* const wrong[] = {
      "lru://1G",           "1G",
      "floe://1X",          "floe://capacity=",
      "floe://capacity=-1", "floe://capacity=1e30",
      "floe://freezing",    "floe://freezing=2;capacity=1",
      "floe://colour=1",    "floe://num_shard_bits=99",
      "floe://=",           "floe://capacity=1;high_pri_pool_ratio=x",
      "floe://4x096",       "floe://capacity=1K;metadata_charge_policy=1",
  };
  for (const char* const text : wrong) {
    if (read(text) || error.empty()) {
      std::fprintf(stderr, "%s was read, or nothing said: %s\n", text, error.c_str());
      std::exit(1);
    }
  }
  CHECK(floe::rocksdb::MakeFloeCacheFromString("floe://policy=none", &error) == nullptr);
  CHECK(error.find("none") != std::string::npos);
  CHECK(floe::rocksdb::MakeFloeCacheFromString("floe://1MiB")->GetCapacity() == 1 << 20);
}

#if FLOE_ROCKSDB_VERSION >= 907
void RocksdbMakesCachesFromText() {
  const rocksdb::ConfigOptions config;
  std::shared_ptr<Cache> cache;
  // Nothing is registered: that is no error by default.
  CHECK(Cache::CreateFromString(config, "floe://1MiB", &cache).ok() && cache == nullptr);
  floe::rocksdb::RegisterFloeCache();
  CHECK(Cache::CreateFromString(config, "floe://capacity=2MiB;policy=lru", &cache).ok());
  CHECK(std::string(cache->Name()) == "FloeCache" && cache->GetCapacity() == 2 << 20);
  CHECK(cache->GetPrintableOptions().find("floe_policy: lru") != std::string::npos);
  cache.reset();
  const rocksdb::Status status = Cache::CreateFromString(config, "floe://colour=1", &cache);
  CHECK(!status.ok() && status.ToString().find("colour") != std::string::npos);
  // As in an option file, where a table has a cache already: RocksDB takes text with a "=" for
  // changes to that, unless it names another by its id.
  for (const char* const text : {"block_size=8192;block_cache=floe://3MiB",
                                 "block_size=8192;block_cache={id=floe://capacity=3MiB&"
                                 "policy=lru&high_pri_pool_ratio=0.5}"}) {
    rocksdb::BlockBasedTableOptions table;
    CHECK(rocksdb::GetBlockBasedTableOptionsFromString(config, rocksdb::BlockBasedTableOptions(),
                                                       text, &table)
              .ok());
    CHECK(table.block_size == 8192 && std::string(table.block_cache->Name()) == "FloeCache");
    CHECK(table.block_cache->GetCapacity() == 3 << 20);
  }
}
#endif

}  // namespace

int main() {
  APoolKeepsWhatHasItsPriority("qd-clock");
  APoolKeepsWhatHasItsPriority("lru");
  PoolsThatCannotBeAreRefused();
  TextIsRead();
#if FLOE_ROCKSDB_VERSION >= 907
  RocksdbMakesCachesFromText();
#endif
  std::puts("done");
}
