// Lookups of RocksDB's block caches: processor time and wall time a hit, all blocks cached.
//
//   cargo build --release -p floe-c
//   c++ -std=c++17 -O2 -I bindings/c/include -I bindings/rocksdb/include
//       bindings/rocksdb/bench/lookups.cc target/release/libfloe_c.a -lrocksdb -lm -ldl -o lookups
//   ./lookups [ROUNDS]
//
// A lookup is what RocksDB does for a block: Lookup, Value (its first word is read), Release. The
// caches take turns in each round; ratios are medians over the rounds.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "floe_rocksdb.hpp"

namespace {

using rocksdb::Cache;
using rocksdb::Slice;

constexpr size_t kBlockBytes = 4096;
constexpr int kLookups = 400'000;

struct Key {
  uint64_t words[2];
  Slice slice() const { return Slice(reinterpret_cast<const char*>(words), sizeof words); }
};

Key KeyOf(uint64_t number) { return {{number * 0x9e3779b97f4a7c15, ~number}}; }

#if FLOE_ROCKSDB_HAS_HELPERS
const Cache::CacheItemHelper kHelper(rocksdb::CacheEntryRole::kDataBlock,
                                     [](void* value, rocksdb::MemoryAllocator*) {
                                       delete static_cast<uint64_t*>(value);
                                     });

rocksdb::Status Insert(Cache& cache, const Key& key, uint64_t number) {
  return cache.Insert(key.slice(), new uint64_t(number), &kHelper, kBlockBytes);
}
#else
void Free(const Slice&, void* value) { delete static_cast<uint64_t*>(value); }

rocksdb::Status Insert(Cache& cache, const Key& key, uint64_t number) {
  return cache.Insert(key.slice(), new uint64_t(number), kBlockBytes, Free);
}
#endif

double ThreadNanoseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

/// Nanoseconds of processor time of a lookup, by threads that look up at the same time.
double Run(Cache& cache, const std::vector<std::vector<Key>>& keys) {
  std::vector<double> taken(keys.size());
  std::vector<std::thread> threads;
  for (size_t number = 0; number < keys.size(); number++) {
    threads.emplace_back([&, number] {
      const double begun = ThreadNanoseconds();
      uint64_t sum = 0;
      for (const Key& key : keys[number]) {
        Cache::Handle* const handle = cache.Lookup(key.slice());
        if (handle == nullptr) std::abort();
        sum += *static_cast<uint64_t*>(cache.Value(handle));
        cache.Release(handle);
      }
      taken[number] = (ThreadNanoseconds() - begun) / keys[number].size();
      if (sum == 42) std::puts("");
    });
  }
  double all = 0;
  for (size_t number = 0; number < keys.size(); number++) {
    threads[number].join();
    all += taken[number];
  }
  return all / keys.size();
}

double Median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
  return all[all.size() / 2];
}

struct Load {
  const char* name;
  uint64_t blocks;
  double skew;
};

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 21;
  std::printf("RocksDB %d.%d, Floe %s; %d lookups a thread and round, %d rounds\n\n", ROCKSDB_MAJOR,
              ROCKSDB_MINOR, floe_version(), kLookups, rounds);
  std::printf("%-24s %7s  %-16s %8s %12s\n", "blocks", "threads", "cache", "ns", "times Floe");
  for (const Load load : {Load{"4", 4, 0}, Load{"20,000, Zipf 0.99", 20'000, 0.99},
                          Load{"260,000, uniform", 260'000, 0}}) {
    const size_t capacity = 2 * load.blocks * kBlockBytes + (64 << 20);
    floe::rocksdb::FloeCacheOptions plain, lru, frozen;
    plain.capacity = lru.capacity = frozen.capacity = capacity;
    lru.policy = "lru";
    frozen.freezing = true;
    struct Subject {
      const char* name;
      std::shared_ptr<Cache> cache;
      std::vector<double> taken;
    };
    std::vector<Subject> subjects;
    subjects.push_back({"floe", floe::rocksdb::NewFloeCache(plain), {}});
    subjects.push_back({"floe, lru", floe::rocksdb::NewFloeCache(lru), {}});
    subjects.push_back({"floe, freezing", floe::rocksdb::NewFloeCache(frozen), {}});
    subjects.push_back({"LRUCache", rocksdb::NewLRUCache(capacity), {}});
    subjects.push_back({"HyperClockCache",
                        rocksdb::HyperClockCacheOptions(capacity, kBlockBytes).MakeSharedCache(),
                        {}});
#if FLOE_ROCKSDB_VERSION >= 807  // from here on its size may grow
    subjects.push_back({"HyperClock, auto",
                        rocksdb::HyperClockCacheOptions(capacity, 0).MakeSharedCache(),
                        {}});
#endif
    for (Subject& subject : subjects) {
      for (uint64_t number = 0; number < load.blocks; number++) {
        if (!Insert(*subject.cache, KeyOf(number), number).ok()) std::abort();
      }
    }
    std::mt19937_64 random(7);
    std::vector<double> weights(load.blocks);
    for (uint64_t rank = 0; rank < load.blocks; rank++) {
      weights[rank] = std::pow(rank + 1.0, -load.skew);
    }
    std::discrete_distribution<uint64_t> draw(weights.begin(), weights.end());
    for (const size_t threads : {1, 2}) {
      std::vector<std::vector<Key>> keys(threads);
      for (auto& own : keys) {
        for (int lookup = 0; lookup < kLookups; lookup++) own.push_back(KeyOf(draw(random)));
      }
      for (Subject& subject : subjects) subject.taken.clear();
      for (int round = 0; round < rounds; round++) {
        for (Subject& subject : subjects) subject.taken.push_back(Run(*subject.cache, keys));
      }
      for (const Subject& subject : subjects) {
        std::vector<double> ratios;
        for (int round = 0; round < rounds; round++) {
          ratios.push_back(subject.taken[round] / subjects[0].taken[round]);
        }
        std::printf("%-24s %7zu  %-16s %8.1f %12.2f\n", load.name, threads, subject.name,
                    Median(subject.taken), Median(ratios));
      }
    }
  }
}
