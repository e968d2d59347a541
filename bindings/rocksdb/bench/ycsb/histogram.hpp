// Times of operations, counted in buckets that are 3 % wide or less.

#ifndef FLOE_YCSB_HISTOGRAM_HPP
#define FLOE_YCSB_HISTOGRAM_HPP

#include <cstdint>
#include <vector>

namespace ycsb {

class Histogram {
 public:
  Histogram() : counts_(kBuckets) {}

  void Add(uint64_t value) {
    counts_[BucketOf(value)]++;
    all_++;
  }

  void Add(const Histogram& other) {
    for (size_t bucket = 0; bucket < kBuckets; bucket++) counts_[bucket] += other.counts_[bucket];
    all_ += other.all_;
  }

  /// The upper bound of the bucket below which that part of the values lies; 0 without values.
  uint64_t Quantile(double part) const {
    uint64_t seen = 0;
    for (size_t bucket = 0; bucket < kBuckets; bucket++) {
      seen += counts_[bucket];
      if (seen > 0 && static_cast<double>(seen) >= part * static_cast<double>(all_)) {
        return Highest(bucket);
      }
    }
    return 0;
  }

 private:
  // A power of two has 32 buckets; below 64 each value has its own.
  static constexpr int kBits = 5;
  static constexpr size_t kBuckets = (64 - kBits + 1) << kBits;

  static size_t BucketOf(uint64_t value) {
    if (value < 2 << kBits) return value;
    const int shift = 63 - __builtin_clzll(value) - kBits;
    return (static_cast<size_t>(shift) << kBits) + (value >> shift);
  }

  static uint64_t Highest(size_t bucket) {
    if (bucket < 2 << kBits) return bucket;
    const int shift = static_cast<int>(bucket >> kBits) - 1;
    return (((bucket & ((1 << kBits) - 1)) + (1 << kBits) + 1) << shift) - 1;
  }

  std::vector<uint64_t> counts_;
  uint64_t all_ = 0;
};

}  // namespace ycsb

#endif  // FLOE_YCSB_HISTOGRAM_HPP
