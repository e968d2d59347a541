//! Tests that need guests with a kernel of their own, a Ceph cluster, an S3 server, or minutes of
//! killed servers.
//!
//! `make test-hosts` runs them, `make test` leaves them out.

mod campaign;
pub(crate) mod guest;
pub(crate) mod guest_nvme;
mod guest_ublk;
pub(crate) mod kills;
mod pair;
mod rbd;
mod rbd_commands;
mod s3;
