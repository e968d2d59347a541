// Lookups of RocksDB's block caches: processor time and wall time a hit, all blocks cached.
//
//   cargo build --release -p floe-c
//   c++ -std=c++17 -O2 -I bindings/c/include -I bindings/rocksdb/include
//       bindings/rocksdb/bench/lookups.cc target/release/libfloe_c.a -lrocksdb -lm -ldl -o lookups
//   ./lookups [ROUNDS]
//
// A lookup is what RocksDB does for a block: Lookup, Value (its first word is read), Release. Each
// round has new caches, with other seeds of their hash functions, which take turns after a run that
// does not count; ratios are medians over the rounds. The one that freezes stays, as it takes many
// lookups until it does.

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "floe_rocksdb.hpp"

namespace {

using rocksdb::Cache;
using rocksdb::Slice;

constexpr size_t kBlockBytes = 4096;
constexpr int kLookups = 400'000;
constexpr size_t kThreadsMost = 2;

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
      bool stays;
      std::function<std::shared_ptr<Cache>()> make;
      std::shared_ptr<Cache> cache;
      std::vector<double> taken[kThreadsMost];
    };
    std::vector<Subject> subjects;
    const auto add = [&](const char* name, std::function<std::shared_ptr<Cache>()> make,
                         bool stays = false) {
      subjects.push_back({name, stays, std::move(make), nullptr, {}});
    };
    add("floe", [&] { return floe::rocksdb::NewFloeCache(plain); });
    add("floe, lru", [&] { return floe::rocksdb::NewFloeCache(lru); });
    add("floe, freezing", [&] { return floe::rocksdb::NewFloeCache(frozen); }, true);
    add("LRUCache", [&] { return rocksdb::NewLRUCache(capacity); });
    add("HyperClockCache", [&] {
      return rocksdb::HyperClockCacheOptions(capacity, kBlockBytes).MakeSharedCache();
    });
#if FLOE_ROCKSDB_VERSION >= 807  // from here on its size may grow
    add("HyperClock, auto",
        [&] { return rocksdb::HyperClockCacheOptions(capacity, 0).MakeSharedCache(); });
#endif
    std::mt19937_64 random(7);
    std::vector<double> weights(load.blocks);
    for (uint64_t rank = 0; rank < load.blocks; rank++) {
      weights[rank] = std::pow(rank + 1.0, -load.skew);
    }
    std::discrete_distribution<uint64_t> draw(weights.begin(), weights.end());
    std::vector<std::vector<Key>> keys[kThreadsMost];
    for (size_t threads = 1; threads <= kThreadsMost; threads++) {
      keys[threads - 1].resize(threads);
      for (auto& own : keys[threads - 1]) {
        for (int lookup = 0; lookup < kLookups; lookup++) own.push_back(KeyOf(draw(random)));
      }
    }
    for (int round = 0; round < rounds; round++) {
      for (Subject& subject : subjects) {
        if (subject.cache && subject.stays) continue;
        subject.cache = subject.make();
        for (uint64_t number = 0; number < load.blocks; number++) {
          if (!Insert(*subject.cache, KeyOf(number), number).ok()) std::abort();
        }
      }
      for (size_t threads = 0; threads < kThreadsMost; threads++) {
        for (Subject& subject : subjects) {
          Run(*subject.cache, keys[threads]);
          subject.taken[threads].push_back(Run(*subject.cache, keys[threads]));
        }
      }
    }
    for (size_t threads = 0; threads < kThreadsMost; threads++) {
      for (const Subject& subject : subjects) {
        std::vector<double> ratios;
        for (int round = 0; round < rounds; round++) {
          ratios.push_back(subject.taken[threads][round] / subjects[0].taken[threads][round]);
        }
        std::printf("%-24s %7zu  %-16s %8.1f %12.2f\n", load.name, threads + 1, subject.name,
                    Median(subject.taken[threads]), Median(ratios));
      }
    }
  }
}
