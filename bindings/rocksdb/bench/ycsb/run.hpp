// One run: a workload on a fresh copy of the database, with one block cache.

#ifndef FLOE_YCSB_RUN_HPP
#define FLOE_YCSB_RUN_HPP

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "database.hpp"
#include "generators.hpp"
#include "histogram.hpp"
#include "record.hpp"

namespace ycsb {

/// A workload with scans has this many times fewer operations.
constexpr uint64_t kOperationsAScan = 10;

struct Settings {
  std::string folder;
  uint64_t records = 1'000'000;
  size_t value_bytes = 1000;
  /// Operations that are measured, and as many before.
  uint64_t operations = 1'000'000;
  uint64_t seed = 1;
  /// Compares all bytes of the values read, rather than record and version.
  bool verify = false;
  /// Leaves the page cache between RocksDB and its files.
  bool buffered = false;
  uint64_t uncache = 0;
  /// The size of second tiers, in percent of the database's files.
  uint64_t tier = 30;
  /// Where second tiers on flash are; empty for beside the database.
  std::string tier_folder;
};

inline const std::string& TierFolder(const Settings& settings) {
  return settings.tier_folder.empty() ? settings.folder : settings.tier_folder;
}

struct Cell {
  char workload;
  /// The capacity of the block cache, in percent of the database's files.
  int percent;
  size_t threads;
  std::string cache;
};

struct Measured {
  double operations_per_second = 0;
  double p50_us = 0, p99_us = 0, p999_us = 0;
  double hit_ratio = 0;
  /// Processor time an operation, of the threads that serve the operations and of all.
  double thread_us = 0, process_us = 0;
  double rss_mib = 0;
  uint64_t mistakes = 0;
};

/// Seconds of processor time: RUSAGE_THREAD or RUSAGE_SELF.
inline double ProcessorSeconds(int whose) {
  rusage usage;
  getrusage(whose, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/// Memory of this process now, in MiB.
inline double ResidentMib() {
  char line[256];
  double kib = 0;
  std::FILE* const status = std::fopen("/proc/self/status", "r");
  while (status != nullptr && std::fgets(line, sizeof line, status) != nullptr) {
    std::sscanf(line, "VmRSS: %lf", &kib);
  }
  if (status != nullptr) std::fclose(status);
  return kib / 1024;
}

/// State of a run that its threads share.
struct Shared {
  Shared(rocksdb::DB& db, const Settings& settings, const Workload& workload, uint64_t most_records)
      : db(db),
        settings(settings),
        workload(workload),
        versions(most_records),
        inserting(settings.records),
        present(settings.records) {}

  rocksdb::DB& db;
  const Settings& settings;
  const Workload& workload;
  Versions versions;
  /// The next record to be inserted; all below `present` are there.
  std::atomic<uint64_t> inserting, present;
  std::atomic<uint64_t> mistakes{0};
};

/// A thread of a run.
class Client {
 public:
  Client(Shared& shared, uint64_t seed)
      : shared_(shared),
        random_(seed),
        chooser_(shared.workload, shared.settings.records),
        checker_(shared.settings.value_bytes, shared.settings.verify) {}

  void Serve(uint64_t operations) {
    auto begun = std::chrono::steady_clock::now();
    for (; operations > 0; operations--) {
      Serve();
      const auto ended = std::chrono::steady_clock::now();
      times_.Add(static_cast<uint64_t>((ended - begun).count()));
      begun = ended;
    }
  }

  const Histogram& Times() const { return times_; }

  /// Forgets the times so far.
  void Forget() { times_ = Histogram(); }

 private:
  void Serve() {
    const Operation operation = shared_.workload.Draw(random_);
    if (operation == Operation::kInsert) return Insert();
    const uint64_t record =
        chooser_.Record(random_, shared_.present.load(std::memory_order_acquire));
    switch (operation) {
      case Operation::kUpdate:
        return shared_.versions.Next(record,
                                     [&](uint64_t version) { Write(record, version); });
      case Operation::kReadModifyWrite:
        return shared_.versions.Next(record, [&](uint64_t version) {
          Read(record, version - 1, version - 1);
          Write(record, version);
        });
      case Operation::kScan:
        return Scan(record);
      default:
        return Read(record);
    }
  }

  void Read(uint64_t record) {
    const uint64_t least = shared_.versions.Done(record);
    const bool found = Get(record);
    Expect(found && checker_.Fits(found_, record, least, shared_.versions.Begun(record)));
  }

  void Read(uint64_t record, uint64_t least, uint64_t most) {
    Expect(Get(record) && checker_.Fits(found_, record, least, most));
  }

  bool Get(uint64_t record) {
    WriteKey(record, &key_[0]);
    found_.Reset();
    return shared_.db
        .Get(rocksdb::ReadOptions(), shared_.db.DefaultColumnFamily(), key_, &found_)
        .ok();
  }

  void Write(uint64_t record, uint64_t version) {
    WriteKey(record, &key_[0]);
    WriteValue(record, version, shared_.settings.value_bytes, value_);
    Need(shared_.db.Put(rocksdb::WriteOptions(), key_, value_), "write a record");
  }

  void Insert() {
    const uint64_t record = shared_.inserting.fetch_add(1, std::memory_order_relaxed);
    Write(record, 0);
    // Records become present in their order: `latest` draws from all below.
    uint64_t before = record;
    while (!shared_.present.compare_exchange_weak(before, record + 1, std::memory_order_release,
                                                  std::memory_order_relaxed)) {
      before = record;
      std::this_thread::yield();
    }
  }

  void Scan(uint64_t record) {
    const uint64_t length = Chooser::ScanLength(random_);
    WriteKey(record, &key_[0]);
    const std::unique_ptr<rocksdb::Iterator> all(shared_.db.NewIterator(rocksdb::ReadOptions()));
    all->Seek(key_);
    bool fits = all->Valid() && all->key() == key_;
    std::string key(kKeyBytes, ' ');
    for (uint64_t seen = 0; seen < length && all->Valid(); seen++, all->Next()) {
      const uint64_t number = HeadOf(all->value()).number;
      WriteKey(number, &key[0]);
      // Workloads that scan have no updates.
      fits = fits && all->key() == key && checker_.Fits(all->value(), number, 0, 0);
    }
    Expect(fits && all->status().ok());
  }

  void Expect(bool fits) {
    if (!fits) shared_.mistakes.fetch_add(1, std::memory_order_relaxed);
  }

  Shared& shared_;
  Random random_;
  Chooser chooser_;
  Checker checker_;
  Histogram times_;
  std::string key_ = std::string(kKeyBytes, ' ');
  std::string value_;
  rocksdb::PinnableSlice found_;
};

/// Reads all records in the order of keys, and has the cache keep them.
inline void ReadAll(rocksdb::DB& db) {
  const std::unique_ptr<rocksdb::Iterator> all(db.NewIterator(rocksdb::ReadOptions()));
  for (all->SeekToFirst(); all->Valid(); all->Next()) {
  }
  Need(all->status(), "read all records");
}

/// Has each client serve as many operations, in a thread of its own. Returns the seconds of
/// processor time that these threads took.
inline double ServeAll(std::vector<std::unique_ptr<Client>>& clients, uint64_t operations) {
  std::vector<double> seconds(clients.size());
  std::vector<std::thread> running;
  for (size_t at = 0; at < clients.size(); at++) {
    running.emplace_back([&, at] {
      clients[at]->Serve(operations);
      seconds[at] = ProcessorSeconds(RUSAGE_THREAD);
    });
  }
  double all = 0;
  for (size_t at = 0; at < clients.size(); at++) {
    running[at].join();
    all += seconds[at];
  }
  return all;
}

/// Copies the loaded database and measures a workload on the copy, which is at `folder`.
inline Measured Run(const Settings& settings, const Cell& cell, const std::string& folder) {
  const uint64_t bytes = Copy(settings.folder + "/loaded", folder);
  const Workload& workload = *WorkloadOf(cell.workload);
  const auto statistics = rocksdb::CreateDBStatistics();
  statistics->set_stats_level(rocksdb::StatsLevel::kExceptHistogramOrTimers);
  const Tier tier{TierFolder(settings) + "/tier", bytes * settings.tier / 100};
  std::remove(tier.path.c_str());
  const auto cache = NewCache(cell.cache, bytes * static_cast<size_t>(cell.percent) / 100, tier);
  const auto db = Open(folder, !settings.buffered, cache, statistics, settings.uncache);
  const uint64_t wanted = settings.operations / (workload.scans > 0 ? kOperationsAScan : 1);
  const uint64_t each = std::max<uint64_t>(wanted / cell.threads, 1);
  const uint64_t operations = each * cell.threads;
  Shared shared(*db, settings, workload, settings.records + 2 * operations);
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t at = 0; at < cell.threads; at++) {
    clients.push_back(std::make_unique<Client>(shared, Mix(settings.seed * 1000 + at)));
  }
  ReadAll(*db);  // so that the cache is full
  ServeAll(clients, each);

  statistics->Reset();
  for (auto& client : clients) client->Forget();
  const double process = ProcessorSeconds(RUSAGE_SELF);
  const auto begun = std::chrono::steady_clock::now();
  const double seconds = ServeAll(clients, each);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;

  Histogram times;
  for (const auto& client : clients) times.Add(client->Times());
  const double served = static_cast<double>(operations);
  Measured measured;
  measured.operations_per_second = served / taken.count();
  measured.p50_us = static_cast<double>(times.Quantile(0.5)) / 1e3;
  measured.p99_us = static_cast<double>(times.Quantile(0.99)) / 1e3;
  measured.p999_us = static_cast<double>(times.Quantile(0.999)) / 1e3;
  const auto hits = statistics->getTickerCount(rocksdb::BLOCK_CACHE_DATA_HIT);
  const auto misses = statistics->getTickerCount(rocksdb::BLOCK_CACHE_DATA_MISS);
  measured.hit_ratio =
      static_cast<double>(hits) / static_cast<double>(std::max<uint64_t>(hits + misses, 1));
  measured.thread_us = seconds / served * 1e6;
  measured.process_us = (ProcessorSeconds(RUSAGE_SELF) - process) / served * 1e6;
  measured.rss_mib = ResidentMib();
  measured.mistakes = shared.mistakes.load();
  return measured;
}

}  // namespace ycsb

#endif  // FLOE_YCSB_RUN_HPP
