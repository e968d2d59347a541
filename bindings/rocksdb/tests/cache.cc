// The whole interface of rocksdb::Cache, as RocksDB uses it, and by several threads.

#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "floe_rocksdb.hpp"
#include "testing.hpp"

namespace {

using floe::rocksdb::FloeCacheOptions;
using floe::rocksdb::NewFloeCache;
using rocksdb::Cache;
using rocksdb::Slice;

/// A value that knows how often it was freed.
struct Object {
  std::string key;
  std::atomic<int> freed{0};
};

std::atomic<uint64_t> freed{0};

void FreeObject(Object* object) {
  CHECK(object->freed.fetch_add(1) == 0);
  freed.fetch_add(1);
  delete object;
}

#if FLOE_ROCKSDB_HAS_HELPERS
using About = const Cache::CacheItemHelper*;

rocksdb::MemoryAllocator* expected_allocator = nullptr;

void FreeWith(void* value, rocksdb::MemoryAllocator* allocator) {
  CHECK(allocator == expected_allocator);
  FreeObject(static_cast<Object*>(value));
}

const Cache::CacheItemHelper kFree(rocksdb::CacheEntryRole::kMisc, FreeWith);
const Cache::CacheItemHelper kFreeOther(rocksdb::CacheEntryRole::kDataBlock, FreeWith);
const About Free = &kFree, FreeOther = &kFreeOther;

About AboutOf(Cache& cache, Cache::Handle* handle) { return cache.GetCacheItemHelper(handle); }
#else
using About = Cache::DeleterFn;

void Free(const Slice& key, void* value) {
  auto* object = static_cast<Object*>(value);
  CHECK(key == Slice(object->key));
  FreeObject(object);
}

void FreeOther(const Slice& key, void* value) { Free(key, value); }

About AboutOf(Cache& cache, Cache::Handle* handle) { return cache.GetDeleter(handle); }
#endif

rocksdb::Status Insert(floe::rocksdb::FloeCache& cache, const Slice& key, void* value,
                       size_t charge, About about, Cache::Handle** handle = nullptr,
                       Cache::Priority priority = Cache::Priority::LOW) {
  return cache.Insert(key, value, about, charge, handle, priority);
}

/// A cache of so much charge, in which entries cost nothing by themselves.
std::shared_ptr<floe::rocksdb::FloeCache> Plain(size_t capacity) {
  return NewFloeCache(Uncharged(capacity));
}

Object* New(const std::string& key) {
  auto* object = new Object;
  object->key = key;
  return object;
}

void EntriesAreFoundAndFreedOnce() {
  freed = 0;
  auto cache = Plain(1 << 20);
  CHECK(std::string(cache->Name()) == "FloeCache");
  CHECK(cache->GetCapacity() == 1 << 20);
  const std::string long_key(300, 'k');
  for (const std::string& key : {std::string("a"), long_key, std::string()}) {
    Object* object = New(key);
    Cache::Handle* handle = nullptr;
    CHECK(Insert(*cache, key, object, 100, Free, &handle).ok());
    CHECK(cache->Value(handle) == object);
    CHECK(cache->GetCharge(handle) == 100 && cache->GetUsage(handle) == 100);
    CHECK(AboutOf(*cache, handle) == Free);
    CHECK(cache->GetPinnedUsage() == 100);
    CHECK(!cache->Release(handle));
    handle = cache->Lookup(key);
    CHECK(handle != nullptr && cache->Value(handle) == object);
    CHECK(!cache->Release(handle));
  }
  CHECK(cache->Lookup("b") == nullptr);
  CHECK(cache->GetUsage() == 300 && cache->GetPinnedUsage() == 0);
  CHECK(cache->GetOccupancyCount() == 3);
  CHECK(cache->NewId() != cache->NewId());
  cache->Erase("a");
  CHECK(freed == 1 && cache->Lookup("a") == nullptr);
  cache->Erase("a");
  cache.reset();
  CHECK(freed == 3);
}

void AHandleKeepsWhatWasErasedOrReplaced() {
  freed = 0;
  auto cache = Plain(1 << 20);
  Object *first = New("a"), *second = New("a");
  Cache::Handle *one, *two;
  CHECK(Insert(*cache, "a", first, 10, Free, &one).ok());
  CHECK(Insert(*cache, "a", second, 20, FreeOther, &two).ok());
  CHECK(cache->Value(one) == first && cache->Value(two) == second);
  CHECK(AboutOf(*cache, two) == FreeOther);
  CHECK(cache->GetPinnedUsage() == 30 && cache->GetUsage() == 30);
  cache->Erase("a");
  CHECK(freed == 0 && cache->Lookup("a") == nullptr);
  cache->Release(one);
  cache->Release(two);
  cache->EraseUnRefEntries();
  CHECK(freed == 2 && cache->GetUsage() == 0);
}

void ReferencesOfOneHandleAreReleasedOneByOne() {
  freed = 0;
  auto cache = Plain(1 << 20);
  std::vector<Cache::Handle*> handles;
  // More than a thread has cheap handles for.
  for (int at = 0; at < 10; at++) {
    const std::string key = std::to_string(at);
    CHECK(Insert(*cache, key, New(key), 10, Free).ok());
    handles.push_back(cache->Lookup(key));
    CHECK(cache->Ref(handles.back()));
    CHECK(cache->Ref(handles.back()));
  }
  for (Cache::Handle* handle : handles) {
    CHECK(!cache->Release(handle, true));
    std::thread([&] { CHECK(!cache->Release(handle, true)); }).join();
    CHECK(static_cast<Object*>(cache->Value(handle))->freed == 0);
    CHECK(cache->Release(handle, true));
  }
  CHECK(cache->GetOccupancyCount() == 0 && cache->GetPinnedUsage() == 0);
  CHECK(freed == 10);
}

/// An entry that left while it was in use, in one of these ways, goes with its last handle.
void TheLastReleaseFreesWhatHasLeft() {
  using Leave = void (*)(Cache&);
  const Leave ways[] = {
      [](Cache&) {},
      [](Cache& cache) { cache.Erase("a"); },
      [](Cache& cache) { cache.SetCapacity(0); },
      [](Cache& cache) {
        for (int at = 0; at < 100; at++) {
          const std::string key = "other " + std::to_string(at);
          CHECK(Insert(static_cast<floe::rocksdb::FloeCache&>(cache), key, New(key), 100, Free)
                    .ok());
        }
        CHECK(cache.Lookup("a") == nullptr);  // evicted
      },
      [](Cache& cache) {
        CHECK(Insert(static_cast<floe::rocksdb::FloeCache&>(cache), "a", New("a"), 10, Free).ok());
      },
  };
  for (const Leave leave : ways) {
    for (const bool by_another_thread : {false, true}) {
      for (int more = 0; more < 6; more++) {  // a thread has four cheap handles
        FloeCacheOptions options = Uncharged(1000);
        options.num_shard_bits = 0;
        options.policy = "lru";
        auto cache = NewFloeCache(options);
        std::vector<Cache::Handle*> others(more);
        for (int at = 0; at < more; at++) {
          const std::string key = "held " + std::to_string(at);
          CHECK(Insert(*cache, key, New(key), 1, Free, &others[at]).ok());
        }
        Cache::Handle* handle;
        CHECK(Insert(*cache, "a", New("a"), 100, Free, &handle).ok());
        leave(*cache);
        cache->EraseUnRefEntries();
        CHECK(cache->GetUsage() == 100u + more && cache->GetPinnedUsage() == 100u + more);
        freed = 0;
        const auto release = [&] { CHECK(cache->Release(handle, true)); };
        by_another_thread ? std::thread(release).join() : release();
        CHECK(freed == 1 && cache->GetUsage() == size_t(more));
        for (Cache::Handle* const other : others) CHECK(cache->Release(other, true));
        CHECK(cache->GetUsage() == 0 && cache->GetPinnedUsage() == 0);
      }
    }
  }
}

void SettingTheCapacityFreesWhatHasLeft() {
  freed = 0;
  FloeCacheOptions options = Uncharged(1000);
  options.num_shard_bits = 0;
  auto cache = NewFloeCache(options);
  Cache::Handle* handle;
  CHECK(Insert(*cache, "a", New("a"), 100, Free, &handle).ok());
  CHECK(Insert(*cache, "a", New("a"), 100, Free).ok());
  CHECK(!cache->Release(handle));
  cache->SetCapacity(500);
  CHECK(freed == 1 && cache->GetUsage() == 100);
}

void AStrictCacheRefusesWhatDoesNotFit() {
  freed = 0;
  FloeCacheOptions options = Uncharged(1000);
  options.strict_capacity_limit = true;
  options.num_shard_bits = 0;
  options.policy = "lru";
  auto cache = NewFloeCache(options);
  CHECK(cache->HasStrictCapacityLimit());
  Cache::Handle *held, *refused;
  CHECK(Insert(*cache, "a", New("a"), 900, Free, &held).ok());
  Object* object = New("b");
  CHECK(Insert(*cache, "b", object, 200, Free, &refused).IsMemoryLimit());
  CHECK(refused == nullptr && freed == 0);
  delete object;
  CHECK(Insert(*cache, "c", New("c"), 200, Free).ok());  // as if evicted at once
  CHECK(freed == 1 && cache->Lookup("c") == nullptr);
  cache->SetStrictCapacityLimit(false);
  CHECK(Insert(*cache, "d", New("d"), 200, Free, &refused).ok());
  CHECK(cache->GetUsage() == 1100);
  cache->Release(refused);
  cache->Release(held);
  cache->SetCapacity(0);
  CHECK(cache->GetUsage() == 0 && freed == 3);
}

void EntriesAreChargedBesideTheirBlocks() {
  auto cache = NewFloeCache(1 << 20);
  Cache::Handle* handle;
  CHECK(Insert(*cache, "a", New("a"), 100, Free, &handle).ok());
  CHECK(cache->GetCharge(handle) == 100);
  CHECK(cache->GetUsage(handle) == 100 + floe_host_entry_bytes());
  CHECK(cache->GetUsage() == cache->GetUsage(handle));
  cache->ApplyToAllEntries(
      [](const Slice&, void*, size_t charge, About) { CHECK(charge == 100); },
      Cache::ApplyToAllEntriesOptions());
  cache->Release(handle);
}

void PrioritiesDecideWhatComesInAndStays() {
  freed = 0;
  FloeCacheOptions options = Uncharged(1000);
  options.policy = "qd-clock";
  options.num_shard_bits = 0;
  auto cache = NewFloeCache(options);
  const auto put = [&](const std::string& key, Cache::Priority priority) {
    CHECK(Insert(*cache, key, New(key), 10, Free, nullptr, priority).ok());
  };
  const auto has = [&](const std::string& key) {
    Cache::Handle* const handle = cache->Lookup(key);
    if (handle != nullptr) cache->Release(handle);
    return handle != nullptr;
  };
  for (int at = 0; at < 100; at++) put("old " + std::to_string(at), Cache::Priority::LOW);
  // More than the queue of new blocks holds: those leave that were not used.
  put("high", Cache::Priority::HIGH);
  put("low", Cache::Priority::LOW);
  for (int at = 0; at < 100; at++) put("new " + std::to_string(at), Cache::Priority::LOW);
  CHECK(has("high") && !has("low"));
  // A full cache takes what has bottom priority as well.
  put("late", Cache::Priority::BOTTOM);
  CHECK(has("late") && cache->GetUsage() <= 1000);
}

#if FLOE_ROCKSDB_HAS_HELPERS
void ObjectsByThemselvesAreChargedAndNotFound() {
  freed = 0;
  FloeCacheOptions options;
  options.capacity = 1000;
  options.strict_capacity_limit = true;
  options.num_shard_bits = 0;
  auto cache = NewFloeCache(options);
  const size_t entry = floe_host_entry_bytes();
  Cache::Handle* const alone = cache->CreateStandalone("a", New("a"), Free, 500, false);
  CHECK(alone != nullptr && cache->Lookup("a") == nullptr && cache->GetOccupancyCount() == 0);
  CHECK(cache->GetCharge(alone) == 500 && cache->GetUsage() == 500 + entry);
  Object* const refused = New("b");
  CHECK(cache->CreateStandalone("b", refused, Free, 501, false) == nullptr && freed == 0);
  Cache::Handle* const uncharged = cache->CreateStandalone("b", refused, Free, 501, true);
  CHECK(uncharged != nullptr && cache->GetCharge(uncharged) == 0);
  CHECK(cache->GetUsage() == 500 + entry);
  cache->ApplyToHandle(cache.get(), alone,
                       [&](const Slice& key, void* object, size_t charge, About about) {
                         CHECK(key == "a" && charge == 500 && about == Free);
                         CHECK(object == cache->Value(alone));
                       });
  CHECK(cache->Release(alone, true));
  cache->Release(uncharged);
  CHECK(freed == 2 && cache->GetUsage() == 0);
}

/// An allocator with a name, which allocates as usual.
struct Allocator : rocksdb::MemoryAllocator {
  const char* Name() const override { return "Allocator"; }
  void* Allocate(size_t size) override { return std::malloc(size); }
  void Deallocate(void* place) override { std::free(place); }
};

void ObjectsAreDeletedWithTheCachesAllocator() {
  freed = 0;
  FloeCacheOptions options;
  options.memory_allocator = std::make_shared<Allocator>();
  expected_allocator = options.memory_allocator.get();
  auto cache = NewFloeCache(options);
  Cache::Handle* handle = nullptr;
  CHECK(Insert(*cache, "a", New("a"), 10, Free).ok());
  CHECK(Insert(*cache, "b", New("b"), 10, FreeOther, &handle).ok());
  CHECK(AboutOf(*cache, handle) == FreeOther);
  cache->Release(handle);
  cache->ApplyToAllEntries(
      [](const Slice& key, void*, size_t charge, About about) {
        CHECK(charge == 10 && about == (key == "a" ? Free : FreeOther));
      },
      Cache::ApplyToAllEntriesOptions());
  cache.reset();
  CHECK(freed == 2);
  expected_allocator = nullptr;
}
#endif

void OptionsThatCannotBeAreExplained() {
  FloeCacheOptions options;
  options.policy = "no-such-policy";
  std::string error;
  CHECK(NewFloeCache(options, &error) == nullptr);
  CHECK(error.find("no-such-policy") != std::string::npos);
}

void AllEntriesAreShownAndUnusedOnesGo() {
  freed = 0;
  auto cache = Plain(1 << 20);
  std::map<std::string, size_t> put, shown;
  std::vector<Cache::Handle*> held;
  for (size_t at = 0; at < 50; at++) {
    const std::string key = "key " + std::to_string(at);
    put[key] = at + 1;
    Cache::Handle* handle = nullptr;
    CHECK(Insert(*cache, key, New(key), at + 1, Free, at % 5 == 0 ? &handle : nullptr).ok());
    if (handle != nullptr) held.push_back(handle);
  }
  cache->ApplyToAllEntries(
      [&](const Slice& key, void* value, size_t charge, About deleter) {
        CHECK(static_cast<Object*>(value)->key == key.ToString() && deleter == Free);
        shown[key.ToString()] = charge;
      },
      {});
  CHECK(shown == put);
  cache->EraseUnRefEntries();
  CHECK(freed == 40 && cache->GetOccupancyCount() == 10);
  for (Cache::Handle* handle : held) cache->Release(handle);
}

/// Threads that insert, look up, erase and pass handles to each other.
void ThreadsFindWhatTheyLookFor(const char* policy, bool freezing) {
  freed = 0;
  std::atomic<uint64_t> made{0};
  FloeCacheOptions options = Uncharged(2000);
  options.policy = policy;
  options.freezing = freezing;
  auto cache = NewFloeCache(options);
  std::mutex mutex;
  std::vector<Cache::Handle*> passed;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; number++) {
    threads.emplace_back([&, number] {
      uint64_t random = 88172645463325252ull + number;
      for (int step = 0; step < 20000; step++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        const std::string key = "key " + std::to_string(random % 400);
        Cache::Handle* handle = cache->Lookup(key);
        if (handle == nullptr) {
          made.fetch_add(1);
          CHECK(Insert(*cache, key, New(key), 10, Free, &handle).ok());
        }
        CHECK(static_cast<Object*>(cache->Value(handle))->key == key);
        switch (random >> 32 & 15) {
          case 0: {
            const std::lock_guard<std::mutex> guard(mutex);
            passed.push_back(handle);
            handle = nullptr;
            if (passed.size() > 20) std::swap(handle, passed[random % 20]);
            break;
          }
          case 1:
            cache->Erase(key);
            break;
          case 2:
            CHECK(cache->Ref(handle));
            cache->Release(handle);
            break;
          default:
            break;
        }
        if (handle != nullptr) cache->Release(handle, (random >> 40 & 31) == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Cache::Handle* handle : passed) {
    if (handle != nullptr) cache->Release(handle);
  }
  CHECK(cache->GetPinnedUsage() == 0);
  cache.reset();
  CHECK(freed == made);
}

}  // namespace

int main() {
  EntriesAreFoundAndFreedOnce();
  AHandleKeepsWhatWasErasedOrReplaced();
  ReferencesOfOneHandleAreReleasedOneByOne();
  TheLastReleaseFreesWhatHasLeft();
  SettingTheCapacityFreesWhatHasLeft();
  AStrictCacheRefusesWhatDoesNotFit();
  EntriesAreChargedBesideTheirBlocks();
  PrioritiesDecideWhatComesInAndStays();
#if FLOE_ROCKSDB_HAS_HELPERS
  ObjectsByThemselvesAreChargedAndNotFound();
  ObjectsAreDeletedWithTheCachesAllocator();
#endif
  OptionsThatCannotBeAreExplained();
  AllEntriesAreShownAndUnusedOnesGo();
  ThreadsFindWhatTheyLookFor("qd-clock", false);
  ThreadsFindWhatTheyLookFor("lru", false);
  ThreadsFindWhatTheyLookFor("qd-clock", true);
  std::puts("done");
}
