// The choices of YCSB's core workloads: which operation, which record, how long a scan.
//
// Zipfian numbers are drawn as in Gray et al., "Quickly generating billion-record synthetic
// databases", SIGMOD 1994, as YCSB does.

#ifndef FLOE_YCSB_GENERATORS_HPP
#define FLOE_YCSB_GENERATORS_HPP

#include <cmath>
#include <cstdint>

namespace ycsb {

/// Maps numbers one to one onto 64 bits that look random (the finisher of splitmix64).
inline uint64_t Mix(uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

/// Random numbers (splitmix64), the same ones from the same seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15); }

  /// At least 0 and below 1.
  double Fraction() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  /// Below `bound`, which is not 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(Next()) * bound >> 64);
  }

 private:
  uint64_t state_;
};

/// Ranks of which the one at r is drawn in proportion to (r + 1) to the power of -skew.
class Zipfian {
 public:
  /// `skew` is between 0 and 1, both excluded.
  explicit Zipfian(uint64_t ranks, double skew = 0.99) : skew_(skew) { Grow(ranks); }

  /// A rank below `ranks`, which must not fall from call to call.
  uint64_t Next(Random& random, uint64_t ranks) {
    if (ranks > ranks_) Grow(ranks);
    const double fraction = random.Fraction();
    const double share = fraction * sum_;
    if (share < 1) return 0;
    if (share < 1 + std::pow(0.5, skew_)) return 1;
    const double rank = static_cast<double>(ranks_) *
                        std::pow(eta_ * fraction - eta_ + 1, 1 / (1 - skew_));
    const uint64_t whole = static_cast<uint64_t>(rank);
    return whole < ranks_ ? whole : ranks_ - 1;
  }

 private:
  void Grow(uint64_t ranks) {
    while (ranks_ < ranks) sum_ += std::pow(static_cast<double>(++ranks_), -skew_);
    const double first_two = 1 + std::pow(0.5, skew_);
    eta_ = (1 - std::pow(2 / static_cast<double>(ranks_), 1 - skew_)) / (1 - first_two / sum_);
  }

  double skew_;
  double eta_ = 0;
  double sum_ = 0;
  uint64_t ranks_ = 0;
};

enum class Operation { kRead, kUpdate, kInsert, kScan, kReadModifyWrite };

/// A core workload: how many of 100 operations are of which kind.
struct Workload {
  char name;
  int reads, updates, inserts, scans, read_modify_writes;
  /// Prefers the records that were inserted last.
  bool latest;

  Operation Draw(Random& random) const {
    int drawn = static_cast<int>(random.Below(100));
    if ((drawn -= reads) < 0) return Operation::kRead;
    if ((drawn -= updates) < 0) return Operation::kUpdate;
    if ((drawn -= inserts) < 0) return Operation::kInsert;
    if ((drawn -= scans) < 0) return Operation::kScan;
    return Operation::kReadModifyWrite;
  }
};

constexpr Workload kWorkloads[] = {
    {'a', 50, 50, 0, 0, 0, false}, {'b', 95, 5, 0, 0, 0, false}, {'c', 100, 0, 0, 0, 0, false},
    {'d', 95, 0, 5, 0, 0, true},   {'e', 0, 0, 5, 95, 0, false}, {'f', 50, 0, 0, 0, 50, false},
};

constexpr uint64_t kLongestScan = 100;

/// The workload of a letter; null if there is none.
inline const Workload* WorkloadOf(char name) {
  for (const Workload& workload : kWorkloads) {
    if (workload.name == name) return &workload;
  }
  return nullptr;
}

/// Draws the records of a workload for a thread. Popular records lie anywhere in the order of keys,
/// since keys are made by `Mix`.
class Chooser {
 public:
  /// `records` were loaded before.
  Chooser(const Workload& workload, uint64_t records)
      : latest_(workload.latest), loaded_(records), ranks_(records) {}

  /// The number of a record; records below `present` exist, at least those loaded. Workloads
  /// other than D choose among the loaded ones.
  uint64_t Record(Random& random, uint64_t present) {
    if (latest_) return present - 1 - ranks_.Next(random, present);
    return ranks_.Next(random, loaded_);
  }

  /// 1 to `kLongestScan`, all equally likely.
  static uint64_t ScanLength(Random& random) { return 1 + random.Below(kLongestScan); }

 private:
  bool latest_;
  uint64_t loaded_;
  Zipfian ranks_;
};

}  // namespace ycsb

#endif  // FLOE_YCSB_GENERATORS_HPP
