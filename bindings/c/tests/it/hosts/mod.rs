//! Tests that need RocksDB. `make test-hosts` runs them, `make test` leaves them out.

mod rocksdb;
