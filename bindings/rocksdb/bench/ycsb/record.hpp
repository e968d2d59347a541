// Records of the benchmark: keys and values that can be checked, and the versions written so far.

#ifndef FLOE_YCSB_RECORD_HPP
#define FLOE_YCSB_RECORD_HPP

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include <rocksdb/slice.h>

#include "generators.hpp"

namespace ycsb {

constexpr size_t kKeyBytes = 20;
constexpr size_t kLeastValueBytes = 16;

/// Writes the key of a record, `kKeyBytes` of them: numbers that follow each other lie apart.
inline void WriteKey(uint64_t number, char* key) {
  static const char kDigits[] = "0123456789abcdef";
  const uint64_t mixed = Mix(number + 1);
  std::memcpy(key, "user", 4);
  for (int at = 0; at < 16; at++) key[4 + at] = kDigits[mixed >> (60 - 4 * at) & 15];
}

/// Makes the value of a version of a record: both numbers, then bytes that follow from them.
inline void WriteValue(uint64_t number, uint64_t version, size_t bytes, std::string& value) {
  value.resize(bytes);
  std::memcpy(&value[0], &number, 8);
  std::memcpy(&value[8], &version, 8);
  Random random(number * 0x9e3779b97f4a7c15 + version);
  for (size_t at = kLeastValueBytes; at < bytes; at += 8) {
    const uint64_t word = random.Next();
    std::memcpy(&value[at], &word, bytes - at < 8 ? bytes - at : 8);
  }
}

/// The number and the version at the head of a value.
struct Head {
  uint64_t number = UINT64_MAX;
  uint64_t version = 0;
};

inline Head HeadOf(const rocksdb::Slice& value) {
  Head head;
  if (value.size() >= kLeastValueBytes) {
    std::memcpy(&head.number, value.data(), 8);
    std::memcpy(&head.version, value.data() + 8, 8);
  }
  return head;
}

/// The versions of all records, which tell a read what it may find.
class Versions {
 public:
  explicit Versions(uint64_t most_records)
      : begun_(new std::atomic<uint32_t>[most_records]()),
        done_(new std::atomic<uint32_t>[most_records]()) {}

  /// The version that a read that begins now finds at least.
  uint64_t Done(uint64_t number) const { return done_[number].load(std::memory_order_acquire); }

  /// The version that a read that has ended has found at most.
  uint64_t Begun(uint64_t number) const { return begun_[number].load(std::memory_order_acquire); }

  /// Has `write(version)` write the next version. The writes of a record come one by one.
  template <typename Write>
  void Next(uint64_t number, const Write& write) {
    const std::lock_guard<std::mutex> guard(locks_[Mix(number) % kLocks]);
    const uint32_t version = begun_[number].fetch_add(1, std::memory_order_acq_rel) + 1;
    write(version);
    done_[number].store(version, std::memory_order_release);
  }

 private:
  static constexpr size_t kLocks = 1024;
  std::unique_ptr<std::atomic<uint32_t>[]> begun_;
  std::unique_ptr<std::atomic<uint32_t>[]> done_;
  std::mutex locks_[kLocks];
};

/// Checks values that were read.
class Checker {
 public:
  /// With `whole`, all bytes of a value are compared, otherwise its head.
  Checker(size_t value_bytes, bool whole) : bytes_(value_bytes), whole_(whole) {}

  /// Is the value one that the record had between the two versions, both included?
  bool Fits(const rocksdb::Slice& value, uint64_t number, uint64_t least, uint64_t most) {
    const Head head = HeadOf(value);
    if (value.size() != bytes_ || head.number != number || head.version < least ||
        head.version > most) {
      return false;
    }
    if (!whole_) return true;
    WriteValue(number, head.version, bytes_, expected_);
    return value == rocksdb::Slice(expected_);
  }

 private:
  size_t bytes_;
  bool whole_;
  std::string expected_;
};

}  // namespace ycsb

#endif  // FLOE_YCSB_RECORD_HPP
