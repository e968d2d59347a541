//! Tests that need a Ceph cluster. `make test-hosts` runs them, `make test` leaves them out.

mod rbd;
