// Floe's block caches from text, for option files and programs such as db_bench. MIT OR Apache-2.0.
//
//   floe://capacity=1GiB&policy=lru&high_pri_pool_ratio=0.5
//   floe://1GiB
//
// The names are those of FloeCacheOptions; ";" separates as "&" does, which RocksDB's option files
// take for an end. RocksDB 9.7 and later makes such a cache wherever it
// makes one from text, after RegisterFloeCache() or in a program that preloads
// preload/floe_preload.cc. Earlier ones make their own caches only.

#ifndef FLOE_ROCKSDB_URI_HPP
#define FLOE_ROCKSDB_URI_HPP

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "floe_rocksdb.hpp"

#if FLOE_ROCKSDB_VERSION >= 907
#include <rocksdb/utilities/object_registry.h>
#endif

namespace floe {
namespace rocksdb {

namespace uri {

/// The beginning of a text that describes a cache of Floe's.
inline constexpr const char kScheme[] = "floe://";

/// Reads a number of bytes: "4096", "64KiB", "1.5G". Units are powers of 1024.
inline bool ReadBytes(const std::string& text, size_t* bytes) {
  char* end = nullptr;
  errno = 0;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || errno != 0 || !(number >= 0)) return false;
  const std::string unit(end);
  const std::string letters = "KMGT";
  double factor = 1;
  if (!unit.empty() && unit != "B") {
    const size_t at = letters.find(static_cast<char>(std::toupper(unit[0])));
    const std::string rest = unit.substr(1);
    if (at == std::string::npos || !(rest.empty() || rest == "B" || rest == "iB")) return false;
    factor = std::exp2(10.0 * static_cast<double>(at + 1));
  }
  if (number * factor >= std::exp2(63)) return false;
  *bytes = static_cast<size_t>(number * factor);
  return true;
}

inline bool ReadFlag(const std::string& text, bool* flag) {
  *flag = text == "true" || text == "1";
  return *flag || text == "false" || text == "0";
}

inline bool ReadNumber(const std::string& text, double* number) {
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

/// Sets one option.
inline bool Set(const std::string& name, const std::string& value, FloeCacheOptions* options,
                std::string* error) {
  bool known = true;
  bool valid = true;
  double number = 0;
  if (name == "capacity") {
    valid = ReadBytes(value, &options->capacity);
  } else if (name == "policy") {
    options->policy = value;
  } else if (name == "freezing") {
    valid = ReadFlag(value, &options->freezing);
  } else if (name == "strict_capacity_limit") {
    valid = ReadFlag(value, &options->strict_capacity_limit);
  } else if (name == "num_shard_bits") {
    valid = ReadNumber(value, &number) && number >= -1 && number < 32;
    options->num_shard_bits = valid ? static_cast<int>(number) : -1;
  } else if (name == "high_pri_pool_ratio") {
    valid = ReadNumber(value, &options->high_pri_pool_ratio);
  } else if (name == "low_pri_pool_ratio") {
    valid = ReadNumber(value, &options->low_pri_pool_ratio);
  } else if (name == "metadata_charge_policy") {
    const bool full = value == "kFullChargeCacheMetadata";
    valid = full || value == "kDontChargeCacheMetadata";
    options->metadata_charge_policy =
        full ? ::rocksdb::kFullChargeCacheMetadata : ::rocksdb::kDontChargeCacheMetadata;
  } else {
    known = false;
  }
  if (error != nullptr && !known) *error = "a Floe cache has no option " + name;
  if (error != nullptr && !valid) *error = name + " of a Floe cache cannot be " + value;
  return known && valid;
}

}  // namespace uri

/// Reads options of a block cache. Those that the text does not name stay as they are. Returns
/// false and, where `error` is given, why, for a text that cannot be read.
inline bool ReadFloeCacheOptions(const std::string& text, FloeCacheOptions* options,
                                 std::string* error = nullptr) {
  const std::string scheme = uri::kScheme;
  if (text.compare(0, scheme.size(), scheme) != 0) {
    if (error != nullptr) *error = "a Floe cache is described by " + scheme + "..., not " + text;
    return false;
  }
  const std::string all = text.substr(scheme.size());
  if (all.find('=') == std::string::npos) {
    return all.empty() || uri::Set("capacity", all, options, error);
  }
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find_first_of(";&", at), all.size());
    const std::string option = all.substr(at, end - at);
    const size_t equals = option.find('=');
    if (equals == std::string::npos) {
      if (error != nullptr) *error = "an option is NAME=VALUE, not " + option;
      return false;
    }
    if (!uri::Set(option.substr(0, equals), option.substr(equals + 1), options, error)) {
      return false;
    }
    at = end + 1;
  }
  return true;
}

/// Makes the block cache that a text describes. Returns null and, where `error` is given, why, if
/// there is none.
inline std::unique_ptr<FloeCache> MakeFloeCacheFromString(const std::string& text,
                                                          std::string* error = nullptr) {
  FloeCacheOptions options;
  if (!ReadFloeCacheOptions(text, &options, error)) return nullptr;
  return MakeFloeCache(options, error);
}

#if FLOE_ROCKSDB_VERSION >= 907
/// Has RocksDB make Floe's caches from text: `Cache::CreateFromString`, option files,
/// `db_bench --cache_uri`. Once is enough.
inline void RegisterFloeCache(
    ::rocksdb::ObjectLibrary& library = *::rocksdb::ObjectLibrary::Default()) {
  using ::rocksdb::ObjectLibrary;
  library.AddFactory<::rocksdb::Cache>(
      ObjectLibrary::PatternEntry("floe", false).AddSeparator("://", false),
      [](const std::string& text, std::unique_ptr<::rocksdb::Cache>* guard, std::string* error) {
        *guard = MakeFloeCacheFromString(text, error);
        return guard->get();
      });
}
#endif

}  // namespace rocksdb
}  // namespace floe

#endif  // FLOE_ROCKSDB_URI_HPP
