// A database with Floe's second tier below RocksDB's own block cache: read, closed and opened again
// by other processes, changed, and made anew. And the interface of the tier.

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/perf_context.h>
#include <rocksdb/perf_level.h>
#include <rocksdb/statistics.h>
#include <rocksdb/table.h>

#include "floe_rocksdb_secondary.hpp"
#include "testing.hpp"

namespace {

using floe::rocksdb::FloeSecondaryCache;
using floe::rocksdb::FloeSecondaryCacheOptions;
using floe::rocksdb::NewFloeSecondaryCache;
using rocksdb::Slice;
using rocksdb::Status;

constexpr int kKeys = 1500;
constexpr uint64_t kFlash = 64 << 20;

/// Whether so many of some 80 blocks are next to none. Now and then the index takes an absent block
/// for one that is there, which is then not inserted.
bool Few(uint64_t blocks) { return blocks < 8; }

FloeSecondaryCacheOptions TierOptions() {
  FloeSecondaryCacheOptions options;
  options.memory = 8 << 20;
  options.wait_for_drive = true;  // so that no block is lost
  return options;
}

std::shared_ptr<FloeSecondaryCache> OpenTier(const std::string& path,
                                             const std::string& compression) {
  FloeSecondaryCacheOptions options = TierOptions();
  options.compression = compression;
  std::string error;
  auto tier = NewFloeSecondaryCache(path, kFlash, options, &error);
  if (tier == nullptr) std::fprintf(stderr, "%s\n", error.c_str());
  CHECK(tier != nullptr);
  return tier;
}

/// RocksDB's block cache above a tier.
using Primary = std::function<std::shared_ptr<rocksdb::Cache>(
    const std::shared_ptr<rocksdb::SecondaryCache>&)>;

#if ROCKSDB_MAJOR >= 9
std::shared_ptr<rocksdb::Cache> HyperClock(const std::shared_ptr<rocksdb::SecondaryCache>& tier) {
  rocksdb::HyperClockCacheOptions options(96 << 10, 4096, 0);
  options.secondary_cache = tier;
  return options.MakeSharedCache();
}

std::shared_ptr<rocksdb::Cache> Floe(const std::shared_ptr<rocksdb::SecondaryCache>& tier) {
  floe::rocksdb::FloeCacheOptions options = Uncharged(96 << 10);
  options.num_shard_bits = 0;
  options.secondary_cache = tier;
  return floe::rocksdb::NewFloeCache(options);
}

/// RocksDB's three tiers: blocks as they are in the files go to the lowest one.
std::shared_ptr<rocksdb::Cache> Tiered(const std::shared_ptr<rocksdb::SecondaryCache>& tier) {
  rocksdb::LRUCacheOptions primary;
  primary.num_shard_bits = 0;
  rocksdb::TieredCacheOptions options;
  options.cache_opts = &primary;
  options.adm_policy = rocksdb::TieredAdmissionPolicy::kAdmPolicyThreeQueue;
  options.comp_cache_opts.num_shard_bits = 0;
  options.total_capacity = 128 << 10;
  options.compressed_secondary_ratio = 0.3;
  options.nvm_sec_cache = tier;
  return rocksdb::NewTieredCache(options);
}
#else
std::shared_ptr<rocksdb::Cache> Lru(const std::shared_ptr<rocksdb::SecondaryCache>& tier) {
  rocksdb::LRUCacheOptions options;
  options.capacity = 96 << 10;  // far less than the data, and more than a MultiGet uses at once
  options.num_shard_bits = 0;
  options.secondary_cache = tier;
  return rocksdb::NewLRUCache(options);
}
#endif

std::string Key(int number) {
  char text[16];
  std::snprintf(text, sizeof text, "key%08d", number);
  return text;
}

std::string Value(int number, int version) {
  std::string value = std::to_string(version) + "/" + std::to_string(number) + "/";
  while (value.size() < 200) value += static_cast<char>('a' + (number * 7 + value.size()) % 26);
  return value;
}

/// A database whose blocks are in a primary cache, and in a tier below it.
struct Served {
  std::shared_ptr<FloeSecondaryCache> tier;
  std::shared_ptr<rocksdb::Cache> primary;
  rocksdb::Options options;
  std::unique_ptr<rocksdb::DB> db;

  Served(const std::string& folder, const Primary& make_primary,
         rocksdb::CompressionType compression = rocksdb::kNoCompression)
      // The tier compresses what RocksDB gives uncompressed alone.
      : tier(OpenTier(folder + "/tier", compression == rocksdb::kNoCompression ? "lz4" : "none")),
        primary(make_primary(tier)) {
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = primary;
    table.block_size = 4096;
    table.cache_index_and_filter_blocks = true;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    options.create_if_missing = true;
    options.compression = compression;
    options.statistics = rocksdb::CreateDBStatistics();
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
#if ROCKSDB_MAJOR >= 10
    const Status status = rocksdb::DB::Open(options, folder + "/db", &db);
#else
    rocksdb::DB* opened = nullptr;
    const Status status = rocksdb::DB::Open(options, folder + "/db", &opened);
    db.reset(opened);
#endif
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    CHECK(status.ok());
  }

  void Write(int version) {
    for (int number = 0; number < kKeys; number++) {
      CHECK(db->Put(rocksdb::WriteOptions(), Key(number), Value(number, version)).ok());
    }
    CHECK(db->Flush(rocksdb::FlushOptions()).ok());
    CHECK(db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr).ok());
  }

  /// Reads each key by itself, and then all in groups, whose lookups of blocks are asynchronous.
  /// Returns the number of blocks that were read from the database's files.
  uint64_t Read(int version) {
    rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
    rocksdb::get_perf_context()->Reset();
    std::string found;
    for (int number = 0; number < kKeys; number++) {
      CHECK(db->Get(rocksdb::ReadOptions(), Key(number), &found).ok());
      CHECK(found == Value(number, version));
    }
    for (int group = 0; group < kKeys; group += 10) {
      std::vector<std::string> keys;
      for (int at = 0; at < 10; at++) keys.push_back(Key((group + at * 101) % kKeys));
      const std::vector<Slice> slices(keys.begin(), keys.end());
      std::vector<rocksdb::PinnableSlice> values(keys.size());
      std::vector<Status> statuses(keys.size());
      db->MultiGet(rocksdb::ReadOptions(), db->DefaultColumnFamily(), keys.size(), slices.data(),
                   values.data(), statuses.data());
      for (int at = 0; at < 10; at++) {
        CHECK(statuses[at].ok() && values[at] == Value((group + at * 101) % kKeys, version));
      }
    }
    return rocksdb::get_perf_context()->block_read_count;
  }

  uint64_t TierHits() const {
    const floe_hybrid_figures figures = tier->Stats();
    return figures.flash_hits + figures.memory_hits;
  }

  /// Closes the database and then the tier, in which all blocks of the primary cache are.
  void Close() {
    db.reset();
    CHECK(tier->Save(*primary).ok());
    options = rocksdb::Options();
    primary.reset();
    CHECK(tier.use_count() == 1);
    tier.reset();
  }
};

/// Runs a part of the test in a process of its own.
void InAProcess(const std::function<void()>& part, bool ends = true) {
  const pid_t child = fork();
  if (child == 0) {
    part();
    if (ends) std::exit(0);
    _exit(0);  // nothing is closed
  }
  int status = 1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

void ADatabaseFindsItsBlocksInTheTier(const std::string& folder, const Primary& primary) {
  CHECK(mkdir(folder.c_str(), 0755) == 0);
  InAProcess([&] {
    Served served(folder, primary);
    served.Write(0);
    CHECK(served.Read(0) > 0);
    CHECK(Few(served.Read(0)));
    CHECK(served.TierHits() > 200);
    CHECK(served.options.statistics->getTickerCount(rocksdb::SECONDARY_CACHE_HITS) > 200);
    served.Close();
  });
  InAProcess([&] {  // the primary cache is cold, and the tier warm
    Served served(folder, primary);
    CHECK(Few(served.Read(0)) && served.TierHits() > 200);
    const floe_hybrid_figures figures = served.tier->Stats();
    CHECK(Few(figures.flash_insertions));  // what flash has is not written again
    served.Write(1);
    CHECK(served.Read(1) > 0 && Few(served.Read(1)));
    served.Close();
  });
  InAProcess([&] {
    Served served(folder, primary);
    CHECK(Few(served.Read(1)));
    served.db.reset();  // another database in the same place, whose files have the same names
    CHECK(rocksdb::DestroyDB(folder + "/db", served.options).ok());
    served.Close();
    Served anew(folder, primary);
    anew.Write(2);
    anew.Read(2);
  }, false);
  InAProcess([&] {  // after a process that closed nothing
    Served served(folder, primary);
    served.Read(2);
    CHECK(Few(served.Read(2)));
    served.Close();
  });
}

#if ROCKSDB_MAJOR >= 9
/// Blocks that the files have compressed are stored and found as they are.
void CompressedBlocksStaySo(const std::string& folder) {
  CHECK(mkdir(folder.c_str(), 0755) == 0);
  for (int version = 0; version < 2; version++) {
    InAProcess([&] {
      Served served(folder, Tiered, rocksdb::kLZ4Compression);
      if (version > 0) served.Read(version - 1);
      const floe_hybrid_figures before = served.tier->Stats();
      CHECK(version == 0 || served.TierHits() > 40);
      served.Write(version);
      served.Read(version);
      const floe_hybrid_figures after = served.tier->Stats();
      const uint64_t blocks = after.flash_insertions - before.flash_insertions;
      CHECK(blocks > 30);
      CHECK(after.appended_bytes - before.appended_bytes < blocks * 3000);  // of 4,096 bytes
      served.Read(version);
      served.Close();
    });
  }
}
#endif

/// The number of objects that are there.
int objects = 0;

#if ROCKSDB_MAJOR >= 9
std::string created_from;

void Delete(void* object, rocksdb::MemoryAllocator*) {
  objects--;
  delete static_cast<std::string*>(object);
}
Status Create(const Slice& block, rocksdb::CompressionType type, rocksdb::CacheTier source,
              rocksdb::Cache::CreateContext*, rocksdb::MemoryAllocator*, void** object,
              size_t* charge) {
  if (block.starts_with("bad")) return Status::Corruption("bad");
  created_from = std::to_string(type) + "/" + std::to_string(static_cast<int>(source));
#else
void Delete(const Slice&, void* object) {
  objects--;
  delete static_cast<std::string*>(object);
}
Status Create(const void* data, size_t size, void** object, size_t* charge) {
  const Slice block(static_cast<const char*>(data), size);
  if (block.starts_with("bad")) return Status::Corruption("bad");
#endif
  objects++;
  *object = new std::string(block.ToString());
  *charge = block.size() + 100;
  return Status::OK();
}

size_t Size(void* object) { return static_cast<std::string*>(object)->size(); }

#if ROCKSDB_MAJOR >= 9
Status SaveTo(void* object, size_t offset, size_t length, char* out) {
#else
Status SaveTo(void* object, size_t offset, size_t length, void* out) {
#endif
  const std::string& text = *static_cast<std::string*>(object);
  if (text == "unsaved") return Status::Aborted("unsaved");
  std::memcpy(out, text.data() + offset, length);
  return Status::OK();
}

#if ROCKSDB_MAJOR >= 9
const rocksdb::Cache::CacheItemHelper kPlain(rocksdb::CacheEntryRole::kMisc, Delete);
const rocksdb::Cache::CacheItemHelper kHelper(rocksdb::CacheEntryRole::kMisc, Delete, Size, SaveTo,
                                              Create, &kPlain);
#else
const rocksdb::Cache::CacheItemHelper kHelper(Size, SaveTo, Delete);
#endif

Status Insert(rocksdb::SecondaryCache& tier, const Slice& key, std::string text) {
#if ROCKSDB_MAJOR >= 9
  return tier.Insert(key, &text, &kHelper, false);
#else
  return tier.Insert(key, &text, &kHelper);
#endif
}

std::unique_ptr<rocksdb::SecondaryCacheResultHandle> Begin(rocksdb::SecondaryCache& tier,
                                                           const Slice& key, bool wait) {
  bool kept = true;
#if ROCKSDB_MAJOR >= 9
  auto handle = tier.Lookup(key, &kHelper, nullptr, wait, true, nullptr, kept);
#else
  auto handle = tier.Lookup(key, Create, wait, true, kept);
#endif
  CHECK(!kept);
  return handle;
}

/// Takes the object of a lookup that has ended.
std::string Taken(rocksdb::SecondaryCacheResultHandle& handle) {
  CHECK(handle.IsReady());
  auto* const object = static_cast<std::string*>(handle.Value());
  if (object == nullptr) return "none";
  const std::string text = *object;
  CHECK(handle.Size() == text.size() + 100);
#if ROCKSDB_MAJOR >= 9
  Delete(object, nullptr);
#else
  Delete("", object);
#endif
  return text;
}

std::string Found(rocksdb::SecondaryCache& tier, const Slice& key) {
  const auto handle = Begin(tier, key, true);
  return handle != nullptr ? Taken(*handle) : "none";
}

void TheInterfaceDoesWhatItSays(const std::string& folder) {
  std::string error;
  CHECK(NewFloeSecondaryCache(folder + "/none/tier", kFlash, TierOptions(), &error) == nullptr);
  CHECK(error.find("none/tier") != std::string::npos);
  FloeSecondaryCacheOptions wrong = TierOptions();
  wrong.admission = "all";
  CHECK(NewFloeSecondaryCache(folder + "/wrong", kFlash, wrong, &error) == nullptr);
  CHECK(error.find("'all'") != std::string::npos && access((folder + "/wrong").c_str(), 0) != 0);

  FloeSecondaryCacheOptions options = TierOptions();
  options.more_drives.emplace_back(folder + "/second", kFlash);
  options.write_budget = "40 MB/s";
  options.compression = "none";
  auto tier = NewFloeSecondaryCache(folder + "/first", kFlash, options, &error);
  CHECK(tier != nullptr && std::string(tier->Name()) == "FloeSecondaryCache");
  CHECK(!tier->SupportForceErase());
  size_t capacity = 0;
  CHECK(tier->GetCapacity(capacity).ok() && capacity > kFlash && capacity <= 2 * kFlash);
  CHECK(tier->SetCapacity(1).IsNotSupported());
  CHECK(tier->GetPrintableOptions().find("floe_write_budget: 40 MB/s") != std::string::npos);

  CHECK(Found(*tier, "key") == "none" && Begin(*tier, "key", false) == nullptr);
  CHECK(Insert(*tier, "key", "block").ok() && Insert(*tier, "empty", "").ok());
  CHECK(Insert(*tier, "unsaved", "unsaved").IsAborted() && Found(*tier, "unsaved") == "none");
  CHECK(Found(*tier, "key") == "block" && Found(*tier, "empty").empty());
  CHECK(Insert(*tier, "key", "another").ok() && Found(*tier, "key") == "block");  // is there
  tier->Erase("key");
  tier->Erase("none");
  CHECK(Found(*tier, "key") == "none");
  // A block of which no object can be made is not offered a second time.
  CHECK(Insert(*tier, "bad", "bad block").ok());
  CHECK(Found(*tier, "bad") == "none" && Insert(*tier, "bad", "good").ok());
  CHECK(Found(*tier, "bad") == "good");
#if ROCKSDB_MAJOR >= 9
  CHECK(Found(*tier, "bad") == "good" && created_from == "0/0");
  CHECK(tier->InsertSaved("zstd", "compressed", rocksdb::kZSTD,
                          rocksdb::CacheTier::kVolatileCompressedTier).ok());
  CHECK(Found(*tier, "zstd") == "compressed" && created_from == "7/1");
  CHECK(tier->Insert("plain", nullptr, &kPlain, false).IsInvalidArgument());
#endif

  std::vector<std::unique_ptr<rocksdb::SecondaryCacheResultHandle>> handles;
  std::vector<rocksdb::SecondaryCacheResultHandle*> all;
  constexpr int kBlocks = 200;
  const auto block = [](int at) { return std::string(at * 50 % 9000, 'a' + at % 26); };
  for (int at = 0; at < kBlocks; at++) CHECK(Insert(*tier, Key(at), block(at)).ok());
  for (int round = 0; round < 2; round++) {  // from the buffers, and from flash
    for (int at = 0; at < kBlocks; at++) {
      handles.push_back(Begin(*tier, Key(at), false));
      if (handles.back() != nullptr) all.push_back(handles.back().get());
    }
    for (int at = 0; at < 10; at++) {
      while (!all[at]->IsReady()) usleep(100);
      all[at + 10]->Wait();
    }
    tier->WaitAll(all);
    for (int at = 0; at < kBlocks; at++) {
      CHECK(handles[at] == nullptr || Taken(*handles[at]) == block(at));
    }
    CHECK(Few(kBlocks - all.size()));
    handles.clear();
    all.clear();
    tier.reset();
    // The drives may be given in any order.
    options.more_drives[0].first = folder + (round == 0 ? "/first" : "/second");
    tier = NewFloeSecondaryCache(folder + (round == 0 ? "/second" : "/first"), kFlash, options);
    CHECK(tier != nullptr);
  }
  tier.reset();
  CHECK(objects == 0);
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  const std::string folder = arguments[1];
  CHECK(mkdir(folder.c_str(), 0755) == 0);
#if ROCKSDB_MAJOR >= 9
  ADatabaseFindsItsBlocksInTheTier(folder + "/clock", HyperClock);
  ADatabaseFindsItsBlocksInTheTier(folder + "/floe", Floe);
  CompressedBlocksStaySo(folder + "/tiered");
#else
  ADatabaseFindsItsBlocksInTheTier(folder + "/database", Lru);
#endif
  TheInterfaceDoesWhatItSays(folder);
  std::puts("done");
}
