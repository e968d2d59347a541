// A database with Floe's block cache: written, compacted, read and scanned by threads, reopened.

#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include "floe_rocksdb.hpp"
#include "testing.hpp"

namespace {

constexpr int kKeys = 20000;

std::string Key(int number) {
  char text[16];
  std::snprintf(text, sizeof text, "key%08d", number);
  return text;
}

std::string Value(int number, int version) {
  return std::string(100 + number % 100, static_cast<char>('a' + (number + version) % 26));
}

/// Serves the folder with a cache, and checks all that was written.
void Use(const std::string& folder, const floe::rocksdb::FloeCacheOptions& cache_options,
         bool index_in_cache, int version) {
  auto cache = floe::rocksdb::NewFloeCache(cache_options);
  CHECK(cache != nullptr);
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.block_size = 4096;
  table.cache_index_and_filter_blocks = index_in_cache;
  table.pin_l0_filter_and_index_blocks_in_cache = index_in_cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.statistics = rocksdb::CreateDBStatistics();
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
#if ROCKSDB_MAJOR >= 10
  std::unique_ptr<rocksdb::DB> db;
  const rocksdb::Status status = rocksdb::DB::Open(options, folder, &db);
#else
  rocksdb::DB* opened = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, folder, &opened);
  std::unique_ptr<rocksdb::DB> db(opened);
#endif
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  CHECK(status.ok());
  if (version > 0) {
    for (int number = 0; number < kKeys; number++) {  // of the life before
      std::string found;
      CHECK(db->Get(rocksdb::ReadOptions(), Key(number), &found).ok());
      CHECK(found == Value(number, version - 1));
    }
  }
  for (int number = 0; number < kKeys; number++) {
    CHECK(db->Put(rocksdb::WriteOptions(), Key(number), Value(number, version)).ok());
  }
  CHECK(db->Flush(rocksdb::FlushOptions()).ok());
  std::vector<std::thread> threads;
  for (int part = 0; part < 2; part++) {
    threads.emplace_back([&, part] {
      for (int round = 0; round < 3; round++) {
        for (int number = part; number < kKeys; number += 2) {
          std::string found;
          CHECK(db->Get(rocksdb::ReadOptions(), Key(number), &found).ok());
          CHECK(found == Value(number, version));
        }
      }
    });
  }
  threads.emplace_back([&] {
    CHECK(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr).ok());
    // An iterator keeps its blocks, also those of files that are gone.
    const std::unique_ptr<rocksdb::Iterator> all(db->NewIterator(rocksdb::ReadOptions()));
    int number = 0;
    for (all->SeekToFirst(); all->Valid(); all->Next(), number++) {
      CHECK(all->key() == Key(number) && all->value() == Value(number, version));
    }
    CHECK(all->status().ok() && number == kKeys);
  });
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> keys;
  for (int number = 0; number < 100; number++) keys.push_back(Key(number * 7));
  std::vector<rocksdb::Slice> slices(keys.begin(), keys.end());
  std::vector<std::string> found;
  for (const rocksdb::Status& each : db->MultiGet(rocksdb::ReadOptions(), slices, &found)) {
    CHECK(each.ok());
  }
  CHECK(found[50] == Value(350, version));
  const rocksdb::Statistics& counted = *options.statistics;
  CHECK(counted.getTickerCount(rocksdb::BLOCK_CACHE_HIT) > 0);
  CHECK(counted.getTickerCount(rocksdb::BLOCK_CACHE_MISS) > 0);
  CHECK(cache->Stats().hits >= counted.getTickerCount(rocksdb::BLOCK_CACHE_HIT));
  CHECK(cache->GetUsage() <= cache->GetCapacity() + cache->GetPinnedUsage());
  uint64_t told = 0;
  CHECK(db->GetIntProperty(rocksdb::DB::Properties::kBlockCacheUsage, &told));
  CHECK(told == cache->GetUsage());
  db.reset();
  CHECK(cache->GetPinnedUsage() == 0);
}

/// What the cache holds, as it tells of each entry.
size_t Charges(floe::rocksdb::FloeCache& cache) {
  size_t sum = 0;
#if FLOE_ROCKSDB_HAS_HELPERS
  using About = const rocksdb::Cache::CacheItemHelper*;
#else
  using About = rocksdb::Cache::DeleterFn;
#endif
  cache.ApplyToAllEntries(
      [&](const rocksdb::Slice&, void*, size_t charge, About) { sum += charge; }, {});
  return sum;
}

/// Memory of write buffers is charged to the cache, which is smaller here so that its charges evict
/// each other while they are in use. None is left when the database is closed.
void WriteBuffersAreChargedAsLongAsTheyAreThere(const std::string& folder) {
  auto cache = floe::rocksdb::NewFloeCache(Uncharged(1 << 20));
  auto buffers = std::make_shared<rocksdb::WriteBufferManager>(64 << 20, cache);
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.write_buffer_manager = buffers;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
#if ROCKSDB_MAJOR >= 10
  std::unique_ptr<rocksdb::DB> db;
  CHECK(rocksdb::DB::Open(options, folder, &db).ok());
#else
  rocksdb::DB* opened = nullptr;
  CHECK(rocksdb::DB::Open(options, folder, &opened).ok());
  std::unique_ptr<rocksdb::DB> db(opened);
#endif
  for (int round = 0; round < 3; round++) {
    for (int number = 0; number < kKeys; number++) {
      CHECK(db->Put(rocksdb::WriteOptions(), Key(number), Value(number, round)).ok());
    }
    CHECK(cache->GetPinnedUsage() >= buffers->memory_usage() / 2);
    for (int number = 0; number < kKeys; number += 3) {
      std::string found;
      CHECK(db->Get(rocksdb::ReadOptions(), Key(number), &found).ok());
    }
    if (round < 2) CHECK(db->Flush(rocksdb::FlushOptions()).ok());
  }
  db.reset();
  CHECK(cache->GetPinnedUsage() == 0);
  options.write_buffer_manager.reset();
  buffers.reset();
  CHECK(cache->GetPinnedUsage() == 0 && cache->GetUsage() == Charges(*cache));
  cache->EraseUnRefEntries();
  CHECK(cache->GetUsage() == 0);
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  floe::rocksdb::FloeCacheOptions options;
  int version = 0;
  for (const char* policy : {"qd-clock", "lru", "s3-fifo"}) {
    options.policy = policy;
    options.capacity = 512 << 10;  // far less than the data
    Use(arguments[1], options, true, version++);
    options.capacity = 64 << 20;
    options.freezing = true;
    Use(arguments[1], options, false, version++);
    options.freezing = false;
  }
  WriteBuffersAreChargedAsLongAsTheyAreThere(std::string(arguments[1]) + "/buffers");
  std::puts("done");
}
