// What the tests of the binding share: a check, and options of caches.

#ifndef FLOE_ROCKSDB_TESTS_TESTING_HPP
#define FLOE_ROCKSDB_TESTS_TESTING_HPP

#include <cstdio>
#include <cstdlib>

#include "floe_rocksdb.hpp"

/// Ends the program where a condition does not hold.
#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (false)

/// Options of a cache of so much charge, in which entries cost nothing by themselves.
inline floe::rocksdb::FloeCacheOptions Uncharged(size_t capacity) {
  floe::rocksdb::FloeCacheOptions options;
  options.capacity = capacity;
  options.metadata_charge_policy = rocksdb::kDontChargeCacheMetadata;
  return options;
}

#endif
